// connect: networks drawn by rule. Rows are counted first, projection by projection; then every projection fills its
// part of each row. csrc/kernels/event/connection_rules.h says how places and numbers are drawn.
#include <spikeforge/jit/recorder.h>
#include <spikeforge/kernels/event/connect.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/connect.h>
#include <spikeforge/ops/event/connect_steps.h>
#include <spikeforge/ops/event/product.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace spikeforge::ops::sparse {
namespace {

using event::ConnectArguments;
using event::ConnectStep;
using event::NumberType;

constexpr std::int64_t most_neurons = std::int64_t{1} << 31;
constexpr double most_of_a_row = 1LL << 30;  // of a fixed total, on average: rows are counted in 32 bits
constexpr double least_kept = 1e-3;          // of the numbers of a law that is drawn again
constexpr double most_exponent = 88;         // e^x is a float

enum class Rule { all_to_all, one_to_one, fixed_probability, fixed_out_degree, fixed_in_degree, fixed_total, arrays };

Rule parse_rule(std::string_view name) {
  constexpr std::string_view names[] = {
      "all_to_all", "one_to_one", "fixed_probability", "fixed_out_degree", "fixed_in_degree", "fixed_total", "arrays"};
  const auto* const found = std::ranges::find(names, name);
  TORCH_CHECK_VALUE(found != std::end(names), "connect: a rule must be \"all_to_all\", \"one_to_one\", ",
                    "\"fixed_probability\", \"fixed_out_degree\", \"fixed_in_degree\", \"fixed_total\" or \"arrays\", ",
                    "but is \"", name.substr(0, 40), "\"");
  return static_cast<Rule>(found - std::begin(names));
}

// How messages begin.
std::string of_projection(std::size_t i) { return "connect: projection " + std::to_string(i) + ": "; }

std::int64_t size_of(const NeuronRange& range) { return range.end - range.begin; }

void check_range(const std::string& where, const char* name, const NeuronRange& range, std::int64_t size,
                 const char* of) {
  TORCH_CHECK_VALUE(range.begin >= 0 && range.begin <= range.end && range.end <= size, where, name,
                    " must be a range within the ", size, " ", of, ", but is ", range.begin, ":", range.end);
}

// The column of row 0's own neuron.
std::int64_t first_own_column(const Projection& p, std::int64_t rows) {
  return rows == 0 ? 0 : p.targets.begin / rows * rows;
}

// By row, of the smallest row where autapses are none; targets of a source, or sources of a target.
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
                    " needs a neuron to connect with, but there is none");
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
                    " connections need neurons to connect, but there are none");
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// Of numbers that are not drawn again, or clipped.
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

void check_law(const std::string& where, const char* name, const NumberLaw& law, bool in_array) {
  const bool is_known = law.law == "constant" || law.law == "uniform" || law.law == "normal" || law.law == "lognormal";
  TORCH_CHECK_VALUE(
      is_known || (in_array && law.law == "array"), where, "the law of ", name,
      R"( must be "constant", "uniform", "normal" or "lognormal", or "array" of the rule "arrays", but is ")",
      law.law.substr(0, 40), "\"");
  if (law.law == "array") return;
  TORCH_CHECK_VALUE(std::isfinite(static_cast<float>(law.first)) && std::isfinite(static_cast<float>(law.second)),
                    where, "the numbers of ", name, "'s law must be finite, but are ", law.first, " and ", law.second);
  TORCH_CHECK_VALUE(law.law != "uniform" || law.first <= law.second, where, "a uniform ", name,
                    " must be from a number to one that is not below it, but is from ", law.first, " to ", law.second);
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

// The least and the most that a law may give.
std::pair<double, double> limits_of(const NumberLaw& law) {
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

void check_delay(const std::string& where, const NumberLaw& law) {
  if (law.law == "array") return;
  const auto [least, most] = limits_of(law);
  TORCH_CHECK_VALUE(least >= 0 && most < 2147483647.0, where,
                    "a delay must be from 0 to 2^31 steps, but this law gives ones from ", least, " to ", most,
                    ": bound it by low and high");
}

void check_indices(const std::string& where, const char* name, const at::Tensor& t, std::int64_t size,
                   c10::Device device) {
  TORCH_CHECK_TYPE(t.scalar_type() == at::kInt || t.scalar_type() == at::kLong, where, name,
                   " must be int32 or int64, but is ", t.scalar_type());
  TORCH_CHECK_VALUE(t.dim() == 1, where, name, " must have shape [connections], but has ", t.sizes());
  TORCH_CHECK_VALUE(t.device() == device, where, name, " must be on ", device, ", but is on ", t.device());
  if (t.numel() == 0) return;
  const auto least = t.min().item<std::int64_t>(), most = t.max().item<std::int64_t>();
  TORCH_CHECK_VALUE(least >= 0 && most < size, where, name, " must be from 0 to ", size - 1,
                    ", the neurons of their range, but are from ", least, " to ", most);
}

void check_numbers_of_arrays(const std::string& where, const char* name, const at::Tensor& t, bool are_delays,
                             std::int64_t count, c10::Device device) {
  const bool fits =
      are_delays ? at::isIntegralType(t.scalar_type(), /*includeBool=*/false) : is_supported(t.scalar_type());
  TORCH_CHECK_TYPE(fits, where, name, are_delays ? " must be whole numbers" : " must be floating point", ", but is ",
                   t.scalar_type());
  TORCH_CHECK_VALUE(t.dim() == 1 && t.size(0) == count, where, name, " must have shape [", count,
                    "], one a connection, but has ", t.sizes());
  TORCH_CHECK_VALUE(t.device() == device, where, name, " must be on ", device, ", but is on ", t.device());
  if (!are_delays || count == 0) return;
  const auto least = t.min().item<std::int64_t>(), most = t.max().item<std::int64_t>();
  TORCH_CHECK_VALUE(least >= 0 && most < most_neurons, where, "delays must be from 0 to 2^31, but are from ", least,
                    " to ", most);
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
                    where, "an array of weights or delays must be given where the law is \"array\", and nowhere else");
  if (p.weights.defined()) check_numbers_of_arrays(where, "weights", p.weights, false, count, device);
  if (p.delays.defined()) check_numbers_of_arrays(where, "delays", p.delays, true, count, device);
}

void check_projection(std::size_t i, const Projection& p, std::int64_t rows, std::int64_t cols, c10::Device device) {
  const std::string where = of_projection(i);
  const Rule rule = parse_rule(p.rule);
  check_range(where, "sources", p.sources, rows, "rows");
  check_range(where, "targets", p.targets, cols, "columns");
  TORCH_CHECK_VALUE(p.autapses || rows == 0 || p.targets.begin == p.targets.end ||
                        p.targets.begin / rows == (p.targets.end - 1) / rows,
                    where, "without autapses targets must be columns of one period of ", rows, ", the rows, but are ",
                    p.targets.begin, ":", p.targets.end);
  switch (rule) {
    case Rule::one_to_one:
      TORCH_CHECK_VALUE(size_of(p.sources) == size_of(p.targets), where,
                        "one_to_one needs as many targets as sources, ", size_of(p.sources), ", but has ",
                        size_of(p.targets));
      break;
    case Rule::fixed_probability:
      TORCH_CHECK_VALUE(p.amount >= 0 && p.amount <= 1, where, "a probability must be from 0 to 1, but is ", p.amount);
      break;
    case Rule::fixed_out_degree:
    case Rule::fixed_in_degree:
      check_degree(where, p, rule == Rule::fixed_out_degree, rows);
      break;
    case Rule::fixed_total:
      check_total(where, p, rows);
      break;
    case Rule::arrays:
      check_arrays(where, p, device);
      break;
    default:
      break;
  }
  check_law(where, "weight", p.weight, rule == Rule::arrays);
  check_law(where, "delay", p.delay, rule == Rule::arrays);
  check_delay(where, p.delay);
}

NumberType number_type(c10::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return NumberType::f16;
    case at::kBFloat16:
      return NumberType::bf16;
    case at::kFloat:
      return NumberType::f32;
    case at::kDouble:
      return NumberType::f64;
    case at::kByte:
      return NumberType::u8;
    default:
      return NumberType::i32;
  }
}

event::Law law_of(const NumberLaw& law) {
  const auto kind = law.law == "uniform"     ? event::LawKind::uniform
                    : law.law == "normal"    ? event::LawKind::normal
                    : law.law == "lognormal" ? event::LawKind::lognormal
                                             : event::LawKind::constant;
  return {law.first, law.second, law.low, law.high, kind, law.redraw ? 1 : 0};
}

template <class T>
T* at_address(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

// The one number of all connections, if there is one.
std::optional<double> common_number(c10::ArrayRef<Projection> projections, NumberLaw Projection::*law) {
  std::optional<double> number;
  for (const Projection& p : projections) {
    const NumberLaw& given = p.*law;
    if (given.law != "constant" || (number && *number != given.first)) return {};
    number = given.first;
  }
  return number.value_or(1);
}

c10::ScalarType delay_type(c10::ArrayRef<Projection> projections) {
  for (const Projection& p : projections) {
    const bool long_array = p.delays.defined() && p.delays.numel() != 0 && p.delays.max().item<std::int64_t>() > 255;
    if (long_array || (p.delay.law != "array" && limits_of(p.delay).second >= 255.5)) return at::kInt;
  }
  return at::kByte;
}

// Draws one projection into a matrix.
class Drawing {
 public:
  Drawing(const Projection& p, std::size_t number, std::int64_t seed, std::int64_t rows, at::TensorOptions options)
      : p_(p), rule_(parse_rule(p.rule)), options_(options.dtype(at::kInt)) {
    const std::int64_t own = first_own_column(p, rows);
    by_rows_ = {.seed = static_cast<unsigned long long>(seed),
                .projection = static_cast<unsigned>(number),
                .without_own = p.autapses ? 0 : 1,
                .count = size_of(p.sources),
                .width = size_of(p.targets),
                .own = p.sources.begin + own - p.targets.begin,
                .places_a_bit = 0,
                .first = static_cast<int>(p.targets.begin)};
    if (rule_ == Rule::fixed_probability)
      by_rows_.places_a_bit = static_cast<float>(-std::log(2.0) / std::log1p(-p.amount));
    degree_ = static_cast<std::int64_t>(p.amount);
  }

  // int32 [sources], the connections of each.
  at::Tensor counts() const {
    const std::int64_t n = by_rows_.count;
    switch (rule_) {
      case Rule::all_to_all:
        return without_own(at::full({n}, by_rows_.width, options_));
      case Rule::one_to_one:
        return p_.autapses || by_rows_.own != 0 ? at::full({n}, 1, options_) : at::zeros({n}, options_);
      case Rule::fixed_out_degree:
        return at::full({n}, degree_, options_);
      case Rule::arrays:
        return at::bincount(p_.source_indices, {}, n).to(at::kInt);
      default:
        break;
    }
    at::Tensor counts = at::zeros({n}, options_);
    ConnectArguments args{.lines = by_rows_, .total = degree_, .counted = at_address<int>(counts)};
    if (rule_ == Rule::fixed_in_degree) {
      const at::Tensor sources = sources_of_targets();
      args.total = sources.numel();
      args.drawn = at_address<int>(sources);
      run(ConnectStep::count_rows, args);
    } else {
      run(rule_ == Rule::fixed_total ? ConnectStep::count_lines : ConnectStep::count_places, args);
    }
    return counts;
  }

  // Of the rows that begin at `starts`, int64 [sources], and have so many connections.
  void fill_indices(const at::Tensor& indices, const at::Tensor& starts, const at::Tensor& counts) const {
    ConnectArguments args{.lines = by_rows_,
                          .starts = at_address<event::Place>(starts),
                          .counts = at_address<int>(counts),
                          .indices = at_address<int>(indices),
                          .rule = rule_of_places()};
    if (rule_ != Rule::fixed_in_degree) return run(ConnectStep::draw, args);
    const at::Tensor sources = sources_of_targets();
    const at::Tensor placed = at::zeros_like(counts);
    args.counted = at_address<int>(placed);
    args.drawn = at_address<int>(sources);
    args.total = sources.numel();
    args.degree = static_cast<int>(degree_);
    if (args.total != 0) run(ConnectStep::place_rows, args);
    run(ConnectStep::sort, args);
  }

  void fill_numbers(const at::Tensor& numbers, const NumberLaw& law, int of, const at::Tensor& starts,
                    const at::Tensor& counts) const {
    run(ConnectStep::numbers, {.lines = by_rows_,
                               .law = law_of(law),
                               .starts = at_address<event::Place>(starts),
                               .counts = at_address<int>(counts),
                               .numbers = numbers.mutable_data_ptr(),
                               .type = number_type(numbers.scalar_type()),
                               .of = of});
  }

  // Of arrays: where each connection goes to, by rows and within a row in the arrays' order.
  at::Tensor slots(const at::Tensor& starts, const at::Tensor& counts) const {
    const at::Tensor order = at::argsort(p_.source_indices, /*stable=*/true, /*dim=*/0);
    const at::Tensor row = p_.source_indices.index_select(0, order).to(at::kLong);
    const at::Tensor before = counts.cumsum(0, at::kLong).sub_(counts);
    const at::Tensor sorted =
        at::arange(row.size(0), row.options()).sub_(before.index_select(0, row)).add_(starts.index_select(0, row));
    at::Tensor slots = at::empty_like(sorted);
    return slots.index_copy_(0, order, sorted);
  }

  bool is_of_arrays() const { return rule_ == Rule::arrays; }
  const Projection& projection() const { return p_; }

 private:
  event::PlaceRule rule_of_places() const {
    switch (rule_) {
      case Rule::all_to_all:
        return event::PlaceRule::all;
      case Rule::one_to_one:
        return event::PlaceRule::one;
      case Rule::fixed_probability:
        return event::PlaceRule::probable;
      default:
        return p_.multapses ? event::PlaceRule::drawn : event::PlaceRule::distinct;
    }
  }

  at::Tensor without_own(at::Tensor counts) const {
    if (by_rows_.without_own == 0) return counts;
    const std::int64_t begin = std::clamp<std::int64_t>(-by_rows_.own, 0, by_rows_.count);
    const std::int64_t end = std::clamp<std::int64_t>(by_rows_.width - by_rows_.own, begin, by_rows_.count);
    counts.slice(0, begin, end).sub_(1);
    return counts;
  }

  // Of a fixed in-degree: int32 [targets * degree].
  at::Tensor sources_of_targets() const {
    event::Lines by_columns = by_rows_;
    by_columns.count = by_rows_.width;
    by_columns.width = by_rows_.count;
    by_columns.own = -by_rows_.own;
    by_columns.first = 0;
    at::Tensor sources = at::empty({by_columns.count * degree_}, options_);
    const at::Tensor starts = at::arange(by_columns.count, options_.dtype(at::kLong)).mul_(degree_);
    const at::Tensor counts = at::full({by_columns.count}, degree_, options_);
    run(ConnectStep::draw, {.lines = by_columns,
                            .starts = at_address<event::Place>(starts),
                            .counts = at_address<int>(counts),
                            .indices = at_address<int>(sources),
                            .rule = rule_of_places()});
    return sources;
  }

  void run(ConnectStep step, const ConnectArguments& args) const {
    if (args.lines.count == 0) return;
    jit::note_by_arch(
        [&](const jit::Device&, const jit::Want& want) { want(event::print_source(event::spec_of(step, args.type))); });
#if defined(SPIKEFORGE_WITH_CUDA)
    if (options_.device().is_cuda()) return connect_cuda(step, args, at::empty({0}, options_));
#endif
    connect_cpu(step, args);
  }

  const Projection& p_;
  Rule rule_;
  at::TensorOptions options_;  // of int32 on the device
  event::Lines by_rows_{};
  std::int64_t degree_ = 0;
};

class Matrix {
 public:
  Matrix(std::int64_t rows, std::vector<Drawing> drawings, at::TensorOptions options) : drawings_(std::move(drawings)) {
    const at::Tensor of_rows = at::zeros({rows}, options.dtype(at::kLong));
    for (const Drawing& drawing : drawings_) {
      counts_.push_back(drawing.counts());
      rows_of(of_rows, drawing).add_(counts_.back());
    }
    result.indptr = at::zeros({rows + 1}, options.dtype(at::kLong));
    result.indptr.slice(0, 1).copy_(of_rows.cumsum_(0));
    nnz = result.indptr.select(0, rows).item<std::int64_t>();
    result.indices = at::empty({nnz}, options.dtype(at::kInt));
  }

  // Of every projection in turn, after which its rows begin further on.
  void fill(bool one_weight, bool one_delay) {
    const at::Tensor next = result.indptr.slice(0, 0, -1).clone();
    for (std::size_t i = 0; i < drawings_.size(); ++i) {
      const at::Tensor starts = rows_of(next, drawings_[i]);
      const at::Tensor& counts = counts_[i];
      const Projection& p = drawings_[i].projection();
      at::Tensor slots;
      if (drawings_[i].is_of_arrays()) {
        slots = drawings_[i].slots(starts, counts);
        result.indices.index_copy_(0, slots, p.target_indices.add(p.targets.begin).to(at::kInt));
      } else {
        drawings_[i].fill_indices(result.indices, starts, counts);
      }
      const auto fill_numbers = [&](const at::Tensor& numbers, const NumberLaw& law, const at::Tensor& given, int of) {
        if (law.law == "array")
          numbers.index_copy_(0, slots, given.to(numbers.scalar_type()));
        else
          drawings_[i].fill_numbers(numbers, law, of, starts, counts);
      };
      if (!one_weight) fill_numbers(result.weights, p.weight, p.weights, 0);
      if (!one_delay) fill_numbers(result.delays, p.delay, p.delays, 1);
      starts.add_(counts);
    }
  }

  Connectivity result;
  std::int64_t nnz = 0;

 private:
  static at::Tensor rows_of(const at::Tensor& t, const Drawing& drawing) {
    return t.slice(0, drawing.projection().sources.begin, drawing.projection().sources.end);
  }

  std::vector<Drawing> drawings_;
  std::vector<at::Tensor> counts_;
};

Connectivity draw(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections, std::int64_t seed,
                  c10::ScalarType type, c10::Device device) {
  check_size("connect", rows, cols);
  for (std::size_t i = 0; i < projections.size(); ++i) check_projection(i, projections[i], rows, cols, device);
  TORCH_CHECK_TYPE(is_supported(type), "connect: weights must be float16, bfloat16, float32 or float64, but are ",
                   type);
  TORCH_CHECK_VALUE(device.is_cpu() || device.is_cuda(), "connect: device must be a CPU or a GPU, but is ", device);
  const auto options = at::TensorOptions().device(device);
  std::vector<Drawing> drawings;
  for (std::size_t i = 0; i < projections.size(); ++i) drawings.emplace_back(projections[i], i, seed, rows, options);
  Matrix matrix(rows, std::move(drawings), options);
  const auto numbers = [&](NumberLaw Projection::*law, c10::ScalarType number_type) {
    const std::optional<double> one = common_number(projections, law);
    const auto of_type = options.dtype(number_type);
    if (!one) return at::empty({matrix.nnz}, of_type);
    return at::full({1}, at::isIntegralType(number_type, false) ? std::floor(*one + 0.5) : *one, of_type);
  };
  matrix.result.weights = numbers(&Projection::weight, type);
  matrix.result.delays = numbers(&Projection::delay, delay_type(projections));
  matrix.fill(common_number(projections, &Projection::weight).has_value(),
              common_number(projections, &Projection::delay).has_value());
  return std::move(matrix.result);
}

// ---- the operator, whose lists are of all projections: ranges and choices have four, numbers eight of each, laws two
// ----

using Strings = c10::List<std::string>;

void check_length(const char* name, std::size_t length, std::size_t each, std::size_t projections) {
  TORCH_CHECK_VALUE(length == each * projections, "connect: ", name, " must have ", each, " elements for each of the ",
                    projections, " rules, but has ", length);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> connect_op(
    std::int64_t rows, std::int64_t cols, const Strings& rules, c10::IntArrayRef ranges, c10::ArrayRef<double> amounts,
    const c10::List<bool>& choices, const Strings& laws, c10::ArrayRef<double> numbers,
    const c10::List<at::Tensor>& arrays, std::int64_t seed, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Device> device) {
  const std::size_t count = rules.size();
  check_length("ranges", ranges.size(), 4, count);
  check_length("amounts", amounts.size(), 1, count);
  check_length("choices", choices.size(), 4, count);
  check_length("laws", laws.size(), 2, count);
  check_length("numbers", numbers.size(), 8, count);
  const std::vector<std::string> rule_names(rules.begin(), rules.end()), law_names(laws.begin(), laws.end());
  std::size_t next = 0;
  const auto next_array = [&](const char* what) -> at::Tensor {
    TORCH_CHECK_VALUE(next < arrays.size(), "connect: arrays must have one of ", what, ", but has ", arrays.size());
    return arrays.get(next++);
  };
  std::vector<Projection> projections;
  for (std::size_t i = 0; i < count; ++i) {
    const auto law = [&](std::size_t which) -> NumberLaw {
      const double* const n = numbers.data() + 8 * i + 4 * which;
      return {law_names[2 * i + which], n[0], n[1], n[2], n[3], choices.get(4 * i + 2 + which)};
    };
    Projection p{.rule = rule_names[i],
                 .sources = {ranges[4 * i], ranges[4 * i + 1]},
                 .targets = {ranges[4 * i + 2], ranges[4 * i + 3]},
                 .amount = amounts[i],
                 .autapses = choices.get(4 * i),
                 .multapses = choices.get(4 * i + 1),
                 .weight = law(0),
                 .delay = law(1)};
    if (p.rule == "arrays") {
      p.source_indices = next_array("sources");
      p.target_indices = next_array("targets");
      if (p.weight.law == "array") p.weights = next_array("weights");
      if (p.delay.law == "array") p.delays = next_array("delays");
    }
    projections.push_back(std::move(p));
  }
  TORCH_CHECK_VALUE(next == arrays.size(), "connect: arrays must have ", next,
                    " tensors, those of the rules \"arrays\", but has ", arrays.size());
  Connectivity drawn = draw(rows, cols, projections, seed, dtype.value_or(c10::get_default_dtype_as_scalartype()),
                            device.value_or(c10::Device(c10::kCPU)));
  return {std::move(drawn.indices), std::move(drawn.indptr), std::move(drawn.weights), std::move(drawn.delays)};
}

SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "connect(int rows, int cols, str[] rules, int[] ranges, float[] amounts, bool[] choices, str[] laws, "
      "float[] numbers, Tensor[] arrays, *, int seed=0, ScalarType? dtype=None, Device? device=None) -> "
      "(Tensor indices, Tensor indptr, Tensor weights, Tensor delays)",
      {at::Tag::pt2_compliant_tag});
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl("connect", TORCH_FN(connect_op)); }

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> connect_meta(
    std::int64_t, std::int64_t, const Strings&, c10::IntArrayRef, c10::ArrayRef<double>, const c10::List<bool>&,
    const Strings&, c10::ArrayRef<double>, const c10::List<at::Tensor>&, std::int64_t, std::optional<c10::ScalarType>,
    std::optional<c10::Device>) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "connect: how many connections there are is not known before they are drawn");
}

SPIKEFORGE_KERNELS(Meta, library) { library.impl("connect", TORCH_FN(connect_meta)); }

}  // namespace
}  // namespace spikeforge::ops::sparse

namespace spikeforge {

Connectivity connect(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections, std::int64_t seed,
                     at::ScalarType weight_type, c10::Device device) {
  return ops::sparse::draw(rows, cols, projections, seed, weight_type, device);
}

}  // namespace spikeforge
