// The table of surrogates as it is published, independent of the library: names, defaults and derivatives.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace spikeforge::test {

using Args = std::vector<long double>;

enum class At0 { half, zero };  // the primitive there

struct KnownSurrogate {
  std::string name;
  Args defaults;
  Args other;  // legal too, so that no test passes because of a default
  At0 primitive;
  std::function<long double(long double x, const Args&)> gradient;
  std::function<Args(const Args&)> kinks;  // where the gradient is not smooth
  bool is_even = true;
  bool is_positive = true;  // everywhere, whatever its arguments
};

inline const std::vector<KnownSurrogate>& surrogate_table() {
  using Real = long double;
  static const Real pi = std::acos(Real(-1));
  static const auto sigma = [](Real x) { return 1 / (1 + std::exp(-x)); };
  static const auto density = [](Real x, Real mean, Real deviation) {
    return std::exp(-std::pow((x - mean) / deviation, 2) / 2) / std::sqrt(2 * pi) / deviation;
  };
  static const auto nowhere = [](const Args&) { return Args{}; };
  static const auto at_zero = [](const Args&) { return Args{0}; };
  static const std::vector<KnownSurrogate> table = {
      {"sigmoid",
       {4},
       {2.5L},
       At0::half,
       [](Real x, const Args& a) { return a[0] * sigma(a[0] * x) * sigma(-a[0] * x); },
       nowhere},
      {"atan",
       {2},
       {1.3L},
       At0::half,
       [](Real x, const Args& a) { return a[0] / 2 / (1 + std::pow(pi / 2 * a[0] * x, 2)); },
       nowhere},
      {"piecewise_quadratic",
       {1},
       {1.4L},
       At0::half,
       [](Real x, const Args& a) { return std::max(Real(0), a[0] - a[0] * a[0] * std::abs(x)); },
       [](const Args& a) {
         return Args{-1 / a[0], 0, 1 / a[0]};
       }},
      {"piecewise_exp",
       {1},
       {1.7L},
       At0::half,
       [](Real x, const Args& a) { return a[0] / 2 * std::exp(-a[0] * std::abs(x)); },
       at_zero},
      {"soft_sign",
       {2},
       {3.2L},
       At0::half,
       [](Real x, const Args& a) { return 1 / (2 * a[0] * std::pow(1 / a[0] + std::abs(x), 2)); },
       at_zero},
      {"super_spike",
       {1},
       {.6L},
       At0::zero,
       [](Real x, const Args& a) { return a[0] / std::pow(std::abs(x) + 1, 2); },
       at_zero},
      {"erf",
       {2},
       {1.2L},
       At0::half,
       [](Real x, const Args& a) { return a[0] / std::sqrt(pi) * std::exp(-a[0] * a[0] * x * x); },
       nowhere},
      {"piecewise_leaky_relu",
       {1, .01L},
       {.7L, .05L},
       At0::half,
       [](Real x, const Args& a) { return std::abs(x) < a[0] ? 1 / (2 * a[0]) : a[1]; },
       [](const Args& a) {
         return Args{-a[0], a[0]};
       }},
      {"s2nn",
       {4, 1},
       {3, .6L},
       At0::half,
       [](Real x, const Args& a) { return x < 0 ? a[0] * sigma(a[0] * x) * sigma(-a[0] * x) : a[1] / (x + 1); },
       at_zero,
       false},
      {"q_pseudo_spike",
       {2},
       {2.7L},
       At0::half,
       [](Real x, const Args& a) { return std::pow(1 + 2 * std::abs(x) / (a[0] - 1), -a[0]); },
       at_zero},
      {"leaky_k_relu",
       {0, 1},
       {.2L, .8L},
       At0::zero,
       [](Real x, const Args& a) { return x >= 0 ? a[1] : a[0]; },
       at_zero,
       false},
      {"fake_numerical_gradient",
       {.3L},
       {.8L},
       At0::zero,
       [](Real x, const Args& a) { return std::min(1 / std::abs(x), a[0]); },
       [](const Args& a) {
         return Args{-1 / a[0], 1 / a[0]};
       }},
      {"log_tailed_relu",
       {0},
       {.3L},
       At0::zero,
       [](Real x, const Args& a) { return x <= 0   ? a[0]
                                          : x <= 1 ? 1
                                                   : 1 / x; },
       [](const Args&) {
         return Args{0, 1};
       },
       false},
      {"nonzero_sign_log_abs",
       {1},
       {.7L},
       At0::zero,
       [](Real x, const Args& a) { return 1 / (1 / a[0] + std::abs(x)); },
       at_zero},
      {"squarewave_fourier",
       {2, 8},
       {4, 11},
       At0::half,
       [](Real x, const Args& a) {
         Real sum = 0;
         for (int i = 1; i < int(a[0]); ++i) sum += std::cos((2 * i - 1) * 2 * pi * x / a[1]);
         return 4 / a[1] * sum;
       },
       nowhere,
       true,
       false},
      {"rect",
       {1},
       {.8L},
       At0::half,
       [](Real x, const Args& a) { return std::abs(x) < .5L / a[0] ? a[0] : 0; },
       [](const Args& a) {
         return Args{-.5L / a[0], .5L / a[0]};
       }},
      {"fast_sigmoid",
       {25},
       {3},
       At0::zero,
       [](Real x, const Args& a) { return std::pow(1 + a[0] * std::abs(x), -2); },
       at_zero},
      {"zenke_super_spike",
       {100},
       {2},
       At0::zero,
       [](Real x, const Args& a) { return std::pow(1 + a[0] * std::abs(x), -2); },
       at_zero},
      {"straight_through", {}, {}, At0::zero, [](Real, const Args&) { return Real(1); }, nowhere},
      {"triangular",
       {1},
       {.7L},
       At0::zero,
       [](Real x, const Args& a) { return x < 0 ? a[0] : -a[0]; },
       at_zero,
       false,
       false},
      {"spike_rate_escape",
       {1, 25},
       {1.5L, .8L},
       At0::zero,
       [](Real x, const Args& a) { return a[1] * std::exp(-a[0] * std::abs(x - 1)); },
       [](const Args&) { return Args{1}; },
       false},
      {"gaussian",
       {.5L, .5L},
       {.8L, 1.1L},
       At0::half,
       [](Real x, const Args& a) { return a[1] * density(x, 0, a[0]); },
       nowhere},
      {"multi_gaussian",
       {.5L, .15L, 6, .5L},
       {.7L, .3L, 4, .9L},
       At0::half,
       [](Real x, const Args& a) {
         const Real sides = density(x, a[0], a[2] * a[0]) + density(x, -a[0], a[2] * a[0]);
         return a[3] * ((1 + a[1]) * density(x, 0, a[0]) - a[1] * sides);
       },
       nowhere,
       true,
       false},
  };
  return table;
}

}  // namespace spikeforge::test
