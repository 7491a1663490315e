#include "csrc/neuron/surrogate.h"

#include "tests/neuron/surrogate_table.h"

#include <limits>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/neuron/oracle.h"

namespace spikeforge::test {
namespace {

struct Default {
  std::string name;
  double value;
};

Default positive(const char* name, double value) { return {name, value}; }
Default above(const char* name, double value, double) { return {name, value}; }
Default finite(const char* name, double value) { return {name, value}; }
Default whole(const char* name, double value, double) { return {name, value}; }

// The library's surrogates: gradient and primitive in either type, with the arguments bound late.
template <class F> struct Functions {
  F (*gradient)(F, const double*);
  F (*primitive)(F, const double*);
};

template <template <class> class Surrogate, class F>
constexpr Functions<F> functions_of{[](F x, const double* args) { return Surrogate<F>(args).gradient(x); },
                                    [](F x, const double* args) { return Surrogate<F>(args).primitive(x); }};

struct Built {
  std::string name;
  std::vector<Default> defaults;
  Functions<double> f64;
  Functions<float> f32;
};

const std::vector<Built>& built() {
  static const std::vector<Built> all = {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) \
  {#name, {__VA_ARGS__}, functions_of<Struct, double>, functions_of<Struct, float>},
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
  };
  return all;
}

struct Subject {
  const KnownSurrogate& known;
  const Built& built;
  Args exact;
  std::vector<double> args;  // what the library is given

  std::string text() const {
    std::string list = known.name;
    for (const double arg : args) (list += " ") += std::to_string(arg);
    return list;
  }
  Real expected(Real x) const { return known.gradient(x, exact); }
  double gradient(double x) const { return built.f64.gradient(x, args.data()); }
  double primitive(double x) const { return built.f64.primitive(x, args.data()); }
  float gradient(float x) const { return built.f32.gradient(x, args.data()); }
  float primitive(float x) const { return built.f32.primitive(x, args.data()); }

  bool is_smooth_near(Real x, Real distance) const {
    for (const Real kink : known.kinks(exact))
      if (std::abs(x - kink) <= distance) return false;
    return true;
  }

  // Beyond it a wave's phase is the rounding of its argument.
  double reach() const { return known.name == "squarewave_fourier" ? 12 : 1e4; }
};

template <class Check> void for_each_surrogate(Check&& check) {
  for (std::size_t i = 0; i < surrogate_table().size(); ++i) {
    for (const bool with_defaults : {true, false}) {
      const KnownSurrogate& known = surrogate_table()[i];
      const Args& exact = with_defaults ? known.defaults : known.other;
      const Subject subject{known, built()[i], exact, {exact.begin(), exact.end()}};
      INFO(subject.text());
      check(subject);
    }
  }
}

// Both signs, from 1e-9 to 1e4, dense where surrogates bend, and every point where abs(alpha x) = 10.
std::vector<double> points(const Subject& subject) {
  std::vector<double> all = {0};
  const auto add = [&](double x) {
    if (x > subject.reach()) return;
    all.push_back(x);
    all.push_back(-x);
  };
  for (double x = 0.0123; x < 12; x += 0.0371) add(x);
  for (double x = 1e-9; x < 2e4; x *= 1.9) add(x);
  if (!subject.args.empty() && subject.args[0] > 0) add(10 / subject.args[0]);
  return all;
}

double largest_gradient(const Subject& subject) {
  Real largest = 0;
  for (const double x : points(subject)) largest = std::max(largest, std::abs(subject.expected(x)));
  return static_cast<double>(largest);
}

}  // namespace

TEST_CASE("the surrogates and their defaults are those of the published table") {
  REQUIRE(built().size() == surrogate_table().size());
  for (std::size_t i = 0; i < built().size(); ++i) {
    const KnownSurrogate& known = surrogate_table()[i];
    INFO(known.name);
    REQUIRE(built()[i].name == known.name);
    REQUIRE(built()[i].defaults.size() == known.defaults.size());
    REQUIRE(known.defaults.size() <= max_surrogate_args);
    for (std::size_t j = 0; j < known.defaults.size(); ++j)
      CHECK(built()[i].defaults[j].value == static_cast<double>(known.defaults[j]));
  }
}

TEST_CASE("arguments have the names of the table") {
  const auto names = [](const std::string& surrogate) {
    std::string list;
    for (const Built& one : built())
      if (one.name == surrogate)
        for (const Default& argument : one.defaults) list += argument.name + " ";
    return list;
  };
  for (const char* one :
       {"sigmoid", "atan", "piecewise_quadratic", "piecewise_exp", "soft_sign", "super_spike", "erf", "q_pseudo_spike",
        "fake_numerical_gradient", "log_tailed_relu", "nonzero_sign_log_abs", "rect"})
    CHECK(names(one) == "alpha ");
  CHECK(names("piecewise_leaky_relu") == "w c ");
  CHECK(names("s2nn") == "alpha beta ");
  CHECK(names("leaky_k_relu") == "leak k ");
  CHECK(names("squarewave_fourier") == "n period ");
  CHECK(names("fast_sigmoid") == "slope ");
  CHECK(names("zenke_super_spike") == "beta ");
  CHECK(names("straight_through").empty());
  CHECK(names("triangular") == "threshold ");
  CHECK(names("spike_rate_escape") == "beta slope ");
  CHECK(names("gaussian") == "sigma gamma ");
  CHECK(names("multi_gaussian") == "sigma h s gamma ");
}

TEST_CASE("the gradient of every surrogate equals its primitive's finite difference") {
  for_each_surrogate([](const Subject& subject) {
    const double scale = largest_gradient(subject);
    const double step = subject.args.empty() ? 1e-3 : 1e-3 * std::min(1., 4 / std::max(4., subject.args[0]));
    for (const double x : points(subject)) {
      if (std::abs(x) > 100 || !subject.is_smooth_near(x, 3 * step)) continue;
      const double slope = double(derivative([&](Real at) { return Real(subject.primitive(double(at))); }, x, step));
      INFO("x = " << x << ": gradient " << subject.gradient(x) << ", finite difference " << slope);
      REQUIRE(std::abs(subject.gradient(x) - slope) <= 1e-8 * scale);
    }
  });
}

TEST_CASE("a primitive is continuous where its gradient is not") {
  for_each_surrogate([](const Subject& subject) {
    const double bound = 1e-8 * std::max(1., largest_gradient(subject));
    for (const Real kink : subject.known.kinks(subject.exact)) {
      const double gap = subject.primitive(double(kink) + 1e-9) - subject.primitive(double(kink) - 1e-9);
      INFO("at " << double(kink) << ": a gap of " << gap);
      REQUIRE(std::abs(gap) <= bound);
    }
  });
}

TEST_CASE("the primitive of every surrogate at 0 is 1/2 or 0") {
  for_each_surrogate([](const Subject& subject) {
    const double expected = subject.known.primitive == At0::half ? .5 : 0;
    CHECK(subject.primitive(0.) == expected);
    CHECK(subject.primitive(0.f) == static_cast<float>(expected));
    CHECK(subject.primitive(-0.) == expected);
  });
}

TEST_CASE("the gradient of every surrogate is the published formula, in its tails too") {
  for_each_surrogate([](const Subject& subject) {
    const double scale = largest_gradient(subject);
    for (const double x : points(subject)) {
      const float x32 = static_cast<float>(x);
      if (!subject.is_smooth_near(x, 1e-6) && x != 0) continue;
      const Real expected = subject.expected(x), expected32 = subject.expected(x32);
      INFO("x = " << x << ": " << subject.gradient(x) << " in float64, " << subject.gradient(x32)
                  << " in float32, expected " << double(expected));
      REQUIRE(std::abs(subject.gradient(x) - expected) <= 1e-13L * scale);
      REQUIRE(std::abs(subject.gradient(x32) - expected32) <= 1e-6L * scale);

      const bool near = (subject.args.empty() || std::abs(subject.args[0] * x) <= 10) && subject.known.is_positive;
      if (!near || expected < 1e-20L) continue;  // what is smaller is no longer a number in float32
      REQUIRE(std::abs(subject.gradient(x) - expected) <= 1e-12L * expected);
      // erf's argument is squared: x = 5 is rounded to 1e-7, and its square of 100 to 1e-5.
      REQUIRE(std::abs(subject.gradient(x32) - expected32) <= 1e-5L * expected32);
    }
  });
}

TEST_CASE("an even surrogate gives x and -x the same bits") {
  int seen = 0;
  for_each_surrogate([&](const Subject& subject) {
    if (!subject.known.is_even) return;
    ++seen;
    for (const double x : points(subject)) {
      REQUIRE(subject.gradient(x) == subject.gradient(-x));
      REQUIRE(subject.gradient(float(x)) == subject.gradient(float(-x)));
    }
  });
  CHECK(seen == 2 * 18);
}

TEST_CASE("gradients and primitives are finite, and gradients not negative, wherever x lies") {
  const auto check = [](const Subject& subject, auto x) {
    INFO("x = " << x << ": gradient " << subject.gradient(x) << ", primitive " << subject.primitive(x));
    REQUIRE(std::isfinite(subject.gradient(x)));
    REQUIRE(std::isfinite(subject.primitive(x)));
    if (subject.known.is_positive) REQUIRE(subject.gradient(x) >= 0);
  };
  for_each_surrogate([&](const Subject& subject) {
    for (const double x : {0., -0., 1e-300, -1e-300, 1., -1., 1e30, -1e30, 1e300, -1e300}) check(subject, x);
    for (const float x : {0.f, -0.f, 1e-40f, -1e-40f, 1.f, -1.f, 1e30f, -1e30f}) check(subject, x);
  });
}

TEST_CASE("a primitive in float32 is that in float64") {
  for_each_surrogate([](const Subject& subject) {
    for (const double x : points(subject)) {
      const float x32 = static_cast<float>(x);
      const double expected = subject.primitive(static_cast<double>(x32));
      INFO("x = " << x << ": " << subject.primitive(x32) << ", expected " << expected);
      REQUIRE(std::abs(subject.primitive(x32) - expected) <= 2e-6 * std::max(1., std::abs(expected)));
    }
  });
}

}  // namespace spikeforge::test
