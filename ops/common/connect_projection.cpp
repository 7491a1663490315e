#include "ops/common/connect_projection.h"
#include "csrc/kernels/event/connection_rules.h"
#include "ops/common/checks.h"

#include <ATen/ops/aminmax.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

namespace spikeforge::ops::sparse {
namespace {

constexpr std::int64_t most_neurons = std::int64_t{1} << 31;
constexpr double most_of_a_row = 1LL << 30;  // average for a fixed total: rows are counted in 32 bits
constexpr double least_kept = 1e-3;          // the minimum share of values that are not redrawn
constexpr double most_exponent = 88;         // e^x is representable as a float

void check_range(const std::string& where, const char* name, const NeuronRange& range, std::int64_t size,
                 const char* of) {
  TORCH_CHECK_VALUE(range.begin >= 0 && range.begin <= range.end && range.end <= size, where, name,
                    " must be a range within the ", size, " ", of, ", but is ", range.begin, ":", range.end);
}

// Checks a degree: the targets per source, or the sources per target. Without autapses, the smallest row limits it.
void check_degree(const std::string& where, const Projection& p, bool out, std::int64_t rows) {
  const NeuronRange& others = out ? p.targets : p.sources;
  TORCH_CHECK_VALUE(p.amount >= 0 && p.amount < most_neurons && p.amount == std::floor(p.amount), where,
                    "a degree must be a whole number from 0 to 2^31, but is ", p.amount);
  const std::int64_t own = first_own_column(p, rows);
  const bool meets =
      !p.autapses && std::max(p.sources.begin + own, p.targets.begin) < std::min(p.sources.end + own, p.targets.end);
  const std::int64_t others_there = size_of(others) - (meets ? 1 : 0);
  const char* const which = out ? "out-degree" : "in-degree";
  if (size_of(out ? p.sources : p.targets) == 0) return;
  TORCH_CHECK_VALUE(p.amount == 0 || others_there > 0, where, "an ", which, " of ", p.amount,
                    " needs a neuron to connect to, but the population has none");
  if (!p.multapses)
    TORCH_CHECK_VALUE(p.amount <= static_cast<double>(others_there), where, "the ", which, " must be at most ",
                      others_there, ", the number of neurons that there are without multapses, but is ", p.amount);
}

void check_total(const std::string& where, const Projection& p, std::int64_t rows) {
  TORCH_CHECK_VALUE(p.multapses, where, "fixed_total draws with replacement: multapses must be allowed");
  const std::int64_t n = size_of(p.sources), m = size_of(p.targets);
  TORCH_CHECK_VALUE(p.amount >= 0 && p.amount == std::floor(p.amount) &&
                        p.amount <= most_of_a_row * static_cast<double>(std::max<std::int64_t>(n, 1)),
                    where, "the number of connections must be a whole number from 0 to 2^30 a source, but is ",
                    p.amount);
  const bool only_itself =
      !p.autapses && n == 1 && m == 1 && p.targets.begin == p.sources.begin + first_own_column(p, rows);
  TORCH_CHECK_VALUE(p.amount == 0 || (n > 0 && m > 0 && !only_itself), where, p.amount,
                    " connections need neurons, but the population has none");
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// Returns the probability that a value is neither redrawn nor clipped.
double share_within(const NumberLaw& law) {
  const auto below = [&](double x) {
    if (law.law == "lognormal") x = x > 0 ? std::log(x) : -std::numeric_limits<double>::infinity();
    return law.second == 0 ? (x >= law.first ? 1.0 : 0.0) : normal_cdf((x - law.first) / law.second);
  };
  if (law.law == "constant") return law.first >= law.low && law.first <= law.high ? 1 : 0;
  if (law.law == "uniform") {
    if (law.first == law.second) return law.first >= law.low && law.first <= law.high ? 1 : 0;
    return (std::min(law.high, law.second) - std::max(law.low, law.first)) / (law.second - law.first);
  }
  if (law.second == 0) {
    const double number = law.law == "normal" ? law.first : std::exp(law.first);
    return number >= law.low && number <= law.high ? 1 : 0;
  }
  return below(law.high) - below(law.low);
}

void check_law(const std::string& where, const char* name, const NumberLaw& law, std::string_view rule) {
  if (law.law == "array") {
    TORCH_CHECK_VALUE(rule == "arrays", where, "a ", name,
                      " for each connection needs the rule arrays, but the rule is ", rule,
                      ": give one number or a law");
    return;
  }
  const bool is_known = law.law == "constant" || law.law == "uniform" || law.law == "normal" || law.law == "lognormal";
  TORCH_CHECK_VALUE(is_known, where, "the law of ", name,
                    R"( must be "constant", "uniform", "normal", "lognormal" or "array", but is ")",
                    law.law.substr(0, 40), "\"");
  TORCH_CHECK_VALUE(std::isfinite(static_cast<float>(law.first)) && std::isfinite(static_cast<float>(law.second)),
                    where, "the numbers of ", name, "'s law must be finite, but are ", law.first, " and ", law.second);
  TORCH_CHECK_VALUE(law.law != "uniform" || law.first <= law.second, where, "a uniform ", name,
                    " must have low <= high, but is from ", law.first, " to ", law.second);
  TORCH_CHECK_VALUE(law.law == "uniform" || law.second >= 0, where, "the standard deviation of ", name,
                    " must not be negative, but is ", law.second);
  const double reach = std::abs(law.first) + largest_normal * law.second;
  TORCH_CHECK_VALUE(law.law != "lognormal" || reach < most_exponent - 1, where, "a lognormal ", name,
                    " must have a finite number, but its logarithm may be ", reach);
  TORCH_CHECK_VALUE(law.low <= law.high, where, name, " must have low <= high, but they are ", law.low, " and ",
                    law.high);
  TORCH_CHECK_VALUE(!law.redraw || share_within(law) >= least_kept, where, name, " is drawn again until it is from ",
                    law.low, " to ", law.high, ", where fewer than one in a thousand are");
}

// Checks delays. They are rounded to whole steps, so a delay from 0.5 on is rounded to one step and legal.
void check_delays(const std::string& where, const Projection& p, int least_delay) {
  const bool is_array = p.delay.law == "array", is_one = p.delay.law == "constant";
  if (is_array && p.delays.numel() == 0) return;
  const auto [least, most] = limits_of(p.delay, p.delays);
  if (least >= (least_delay == 0 ? 0 : least_delay - 0.5) && most < 2147483647.0) return;
  const std::string range = c10::str(least, is_one ? "" : c10::str(" to ", most));
  TORCH_CHECK_VALUE(false, where, is_array ? "delays" : "a delay", " must be from ", least_delay,
                    " to 2^31 steps, but ",
                    is_array ? "are from "
                    : is_one ? "is "
                             : "this law gives ones from ",
                    range, is_array || is_one ? "" : ": bound it by low and high");
}

void check_place(const std::string& where, const char* name, const at::Tensor& t, c10::Device device) {
  TORCH_CHECK_TYPE(t.layout() == at::kStrided, where, name, " must be dense, but is ", t.layout());
  TORCH_CHECK_VALUE(t.device() == device, where, name, " must be on ", device, ", but is on ", t.device());
}

void check_indices(const std::string& where, const char* name, const at::Tensor& t, std::int64_t size,
                   c10::Device device) {
  TORCH_CHECK_TYPE(t.scalar_type() == at::kInt || t.scalar_type() == at::kLong, where, name,
                   " must be int32 or int64, but is ", t.scalar_type());
  TORCH_CHECK_VALUE(t.dim() == 1, where, name, " must have shape [connections], but has ", t.sizes());
  check_place(where, name, t, device);
  if (t.numel() == 0) return;
  const auto least = t.min().item<std::int64_t>(), most = t.max().item<std::int64_t>();
  TORCH_CHECK_VALUE(least >= 0 && most < size, where, name, " must be from 0 to ", size - 1,
                    ", the neurons of their range, but are from ", least, " to ", most);
}

void check_numbers_of_arrays(const std::string& where, const char* name, const at::Tensor& t, std::int64_t count,
                             c10::Device device) {
  const at::ScalarType type = t.scalar_type();
  const bool is_whole = at::isIntegralType(type, /*includeBool=*/false) && !at::isBarebonesUnsignedType(type);
  TORCH_CHECK_TYPE(is_supported(type) || is_whole, where, name,
                   " must be floating-point or whole numbers, such as float32 or int64, but is ", type);
  TORCH_CHECK_VALUE(t.dim() == 1 && t.size(0) == count, where, name, " must have shape [", count,
                    "], one a connection, but has ", t.sizes());
  check_place(where, name, t, device);
}

void check_arrays(const std::string& where, const Projection& p, c10::Device device) {
  TORCH_CHECK_VALUE(p.source_indices.defined() && p.target_indices.defined(), where,
                    "arrays needs the sources and targets of connections");
  check_indices(where, "sources", p.source_indices, size_of(p.sources), device);
  check_indices(where, "targets", p.target_indices, size_of(p.targets), device);
  const std::int64_t count = p.source_indices.size(0);
  TORCH_CHECK_VALUE(p.target_indices.size(0) == count, where, "there must be as many targets as sources, ", count,
                    ", but there are ", p.target_indices.size(0));
  TORCH_CHECK_VALUE((p.weight.law == "array") == p.weights.defined() && (p.delay.law == "array") == p.delays.defined(),
                    where, "an array of weights or delays must be given if the law is \"array\", and only then");
  if (p.weights.defined()) check_numbers_of_arrays(where, "weights", p.weights, count, device);
  if (p.delays.defined()) check_numbers_of_arrays(where, "delays", p.delays, count, device);
}

}  // namespace

ConnectionRule parse_rule(const std::string& where, std::string_view name) {
  constexpr std::string_view names[] = {
      "all_to_all", "one_to_one", "fixed_probability", "fixed_out_degree", "fixed_in_degree", "fixed_total", "arrays"};
  const auto* const found = std::ranges::find(names, name);
  TORCH_CHECK_VALUE(found != std::end(names), where, "a rule must be \"all_to_all\", \"one_to_one\", ",
                    "\"fixed_probability\", \"fixed_out_degree\", \"fixed_in_degree\", \"fixed_total\" or \"arrays\", ",
                    "but is \"", name.substr(0, 40), "\"");
  return static_cast<ConnectionRule>(found - std::begin(names));
}

std::pair<double, double> limits_of(const NumberLaw& law, const at::Tensor& array) {
  if (law.law == "array") {
    const auto [least, most] = at::aminmax(array);
    return {least.item<double>(), most.item<double>()};
  }
  double least = law.first, most = law.first;
  if (law.law == "uniform") {
    most = law.second;
  } else if (law.law != "constant") {
    least -= largest_normal * law.second;
    most += largest_normal * law.second;
  }
  if (law.law == "lognormal") {
    least = std::exp(least);
    most = std::exp(most);
  }
  if (law.law == "constant" && !law.redraw) return {least, most};
  return {std::clamp(least, law.low, law.high), std::clamp(most, law.low, law.high)};
}

at::Tensor whole_delays(const at::Tensor& delays) {
  if (!at::isFloatingType(delays.scalar_type())) return delays;
  return delays.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).add_(0.5).floor_();
}

void check_projection(const std::string& where, const Projection& p, std::int64_t rows, std::int64_t cols,
                      c10::Device device, int least_delay) {
  const ConnectionRule rule = parse_rule(where, p.rule);
  check_range(where, "sources", p.sources, rows, "rows");
  check_range(where, "targets", p.targets, cols, "columns");
  TORCH_CHECK_VALUE(p.autapses || rows == 0 || p.targets.begin == p.targets.end ||
                        p.targets.begin / rows == (p.targets.end - 1) / rows,
                    where, "without autapses targets must be columns of one period of ", rows, ", the rows, but are ",
                    p.targets.begin, ":", p.targets.end);
  switch (rule) {
    case ConnectionRule::one_to_one:
      TORCH_CHECK_VALUE(size_of(p.sources) == size_of(p.targets), where,
                        "one_to_one needs as many targets as sources, ", size_of(p.sources), ", but has ",
                        size_of(p.targets));
      break;
    case ConnectionRule::fixed_probability:
      TORCH_CHECK_VALUE(p.amount >= 0 && p.amount <= 1, where, "a probability must be from 0 to 1, but is ", p.amount);
      break;
    case ConnectionRule::fixed_out_degree:
    case ConnectionRule::fixed_in_degree: check_degree(where, p, rule == ConnectionRule::fixed_out_degree, rows); break;
    case ConnectionRule::fixed_total: check_total(where, p, rows); break;
    case ConnectionRule::arrays: check_arrays(where, p, device); break;
    default: break;
  }
  check_law(where, "weight", p.weight, p.rule);
  check_law(where, "delay", p.delay, p.rule);
  check_delays(where, p, least_delay);
}

}  // namespace spikeforge::ops::sparse
