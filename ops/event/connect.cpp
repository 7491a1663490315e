// connect: draws networks by rules. First the connections of each row are counted, projection by projection; then every
// projection fills its part of each row. csrc/kernels/event/connection_rules.h defines the drawing of positions and
// values.
//
// connect_part: a part of such a matrix, for one of several processes. The place of a connection in its row selects the
// random number of its weight, so a projection is drawn whole before connections are dropped.
#include "ops/connect.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/connect_drawing.h"
#include "ops/event/product.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace spikeforge::ops::sparse {
namespace {

// Returns the common value of all connections, if there is one.
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
  const bool any_is_long = std::ranges::any_of(projections, [](const Projection& p) {
    return !(p.delay.law == "array" && p.delays.numel() == 0) && limits_of(p.delay, p.delays).second >= 255.5;
  });
  return any_is_long ? at::kInt : at::kByte;
}

// Checks the sizes: columns are 32-bit numbers.
void check_sizes(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  TORCH_CHECK_VALUE(rows >= 0 && rows <= most, "connect: rows must be from 0 to 2^31 - 1, but is ", rows);
  TORCH_CHECK_VALUE(cols >= 0 && cols <= most, "connect: cols must be from 0 to 2^31 - 1, but is ", cols);
}

at::Tensor one_of(const std::optional<double>& number, at::TensorOptions options) {
  if (!number) return {};
  const bool is_whole = at::isIntegralType(c10::typeMetaToScalarType(options.dtype()), false);
  return at::full({1}, is_whole ? std::floor(*number + 0.5) : *number, options);
}

// Runs all checks of a call. Returns the device, with an index.
c10::Device check_connect(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections,
                          c10::ScalarType type, c10::Device device) {
  check_sizes(rows, cols);
  device = numbered(device);
  for (std::size_t i = 0; i < projections.size(); ++i) {
    const std::string where = "connect: projection " + std::to_string(i) + ": ";
    const Projection& p = projections[i];
    check_projection(where, p, rows, cols, device);
    TORCH_CHECK_VALUE(!p.weights.defined() || p.weights.isfinite().all().item<bool>(), where,
                      "weights must be finite, but one is not");
  }
  TORCH_CHECK_TYPE(is_supported(type), "connect: weights must be float16, bfloat16, float32 or float64, but are ",
                   type);
  TORCH_CHECK_VALUE(device.is_cpu() || device.is_cuda(), "connect: device must be a CPU or a GPU, but is ", device);
  return device;
}

// The weights and delays of all projections: one value for all connections, or space for one per connection.
struct MatrixNumbers {
  MatrixNumbers(c10::ArrayRef<Projection> projections, c10::ScalarType weight_type, at::TensorOptions options)
      : weights(options.dtype(weight_type)), delays(options.dtype(delay_type(projections))) {
    one_weight = one_of(common_number(projections, &Projection::weight), weights);
    one_delay = one_of(common_number(projections, &Projection::delay), delays);
  }

  at::Tensor one_weight, one_delay;  // [1]; undefined if there is a value per connection
  at::TensorOptions weights, delays;

  at::Tensor room_for_weights(std::int64_t connections) const {
    return one_weight.defined() ? one_weight : at::empty({connections}, weights);
  }
  at::Tensor room_for_delays(std::int64_t connections) const {
    return one_delay.defined() ? one_delay : at::empty({connections}, delays);
  }
};

at::Tensor ends_of(const at::Tensor& counts) { return counts.cumsum(0, at::kLong); }

// A matrix whose rows have these numbers of connections, int64 [rows], to be filled. Overwrites `counts`.
Connectivity empty_matrix(const at::Tensor& counts, const MatrixNumbers& numbers) {
  const std::int64_t rows = counts.numel();
  Connectivity matrix{.indices = {}, .indptr = at::zeros({rows + 1}, counts.options()), .weights = {}, .delays = {}};
  matrix.indptr.slice(0, 1).copy_(counts.cumsum_(0));
  const auto nnz = matrix.indptr.select(0, rows).item<std::int64_t>();
  matrix.indices = at::empty({nnz}, counts.options().dtype(at::kInt));
  matrix.weights = numbers.room_for_weights(nnz);
  matrix.delays = numbers.room_for_delays(nnz);
  return matrix;
}

// Fills the connections of a projection, whose rows begin at `starts`: columns, and weights and delays if there is a
// value per connection.
void fill_connections(const Drawing& drawing, const MatrixNumbers& numbers, const at::Tensor& starts,
                      const at::Tensor& counts, const Connectivity& to) {
  const Projection& p = drawing.projection();
  at::Tensor slots;
  if (drawing.is_of_arrays()) {
    slots = drawing.slots(starts, counts);
    at::Tensor indices = to.indices;
    indices.index_copy_(0, slots, p.target_indices.to(at::kInt).add(p.targets.begin));
  } else {
    drawing.fill_indices(to.indices, starts, counts);
  }
  const auto fill_numbers = [&](at::Tensor of_each, const NumberLaw& law, const at::Tensor& given, int of) {
    if (law.law == "array")
      of_each.index_copy_(0, slots, given.to(of_each.scalar_type()));
    else
      drawing.fill_numbers(of_each, law, of, starts, counts);
  };
  if (!numbers.one_weight.defined()) fill_numbers(to.weights, p.weight, p.weights, 0);
  if (!numbers.one_delay.defined())
    fill_numbers(to.delays, p.delay, p.delays.defined() ? whole_delays(p.delays) : p.delays, 1);
}

// The drawn connections of all projections, by rows.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::vector<Drawing> drawings, const MatrixNumbers& numbers, at::TensorOptions options)
      : drawings_(std::move(drawings)), numbers_(numbers) {
    const at::Tensor of_rows = at::zeros({rows}, options.dtype(at::kLong));
    for (const Drawing& drawing : drawings_) {
      counts_.push_back(drawing.counts());
      rows_of(of_rows, drawing).add_(counts_.back());
    }
    result_ = empty_matrix(of_rows, numbers);
  }

  // Fills the projections in order; each advances the begins of its rows.
  Connectivity fill() {
    const at::Tensor next = result_.indptr.slice(0, 0, -1).clone();
    for (std::size_t i = 0; i < drawings_.size(); ++i) {
      const at::Tensor starts = rows_of(next, drawings_[i]);
      fill_connections(drawings_[i], numbers_, starts, counts_[i], result_);
      starts.add_(counts_[i]);
    }
    return std::move(result_);
  }

 private:
  static at::Tensor rows_of(const at::Tensor& t, const Drawing& drawing) {
    return t.slice(0, drawing.projection().sources.begin, drawing.projection().sources.end);
  }

  std::vector<Drawing> drawings_;
  const MatrixNumbers& numbers_;
  std::vector<at::Tensor> counts_;
  Connectivity result_;
};

Connectivity draw(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections, std::int64_t seed,
                  c10::ScalarType type, c10::Device device) {
  device = check_connect(rows, cols, projections, type, device);
  const auto options = at::TensorOptions().device(device);
  std::vector<Drawing> drawings;
  for (std::size_t i = 0; i < projections.size(); ++i) drawings.emplace_back(projections[i], i, seed, rows, options);
  const MatrixNumbers numbers(projections, type, options);
  return Matrix(rows, std::move(drawings), numbers, options).fill();
}

// ---- a part ----

// The kept connections of one projection.
struct Kept {
  at::Tensor counts;  // int64 [sources]
  std::int64_t first_row = 0;
  Connectivity connections;  // without indptr; weights and delays if per connection
};

Kept keep(const Drawing& drawing, const MatrixNumbers& numbers, const at::Tensor& columns, std::int64_t first_row,
          at::TensorOptions options) {
  const at::Tensor counts = drawing.counts();
  const at::Tensor ends = ends_of(counts), starts = ends.sub(counts);
  const std::int64_t all = counts.numel() == 0 ? 0 : ends[-1].item<std::int64_t>();
  Connectivity drawn{.indices = at::empty({all}, options.dtype(at::kInt)),
                     .indptr = {},
                     .weights = numbers.room_for_weights(all),
                     .delays = numbers.room_for_delays(all)};
  fill_connections(drawing, numbers, starts, counts, drawn);
  const at::Tensor to = columns.index_select(0, drawn.indices);
  const at::Tensor is_kept = to.ge(0);
  const at::Tensor before = at::cat({at::zeros({1}, starts.options()), ends_of(is_kept)});
  const auto kept_of = [&](const at::Tensor& given, const at::Tensor& one) {
    return one.defined() ? at::Tensor() : given.masked_select(is_kept);
  };
  return {.counts = before.index_select(0, ends).sub_(before.index_select(0, starts)),
          .first_row = first_row,
          .connections = {.indices = to.masked_select(is_kept),
                          .indptr = {},
                          .weights = kept_of(drawn.weights, numbers.one_weight),
                          .delays = kept_of(drawn.delays, numbers.one_delay)}};
}

// Joins the parts by rows, and within a row in the order of projections. Consumes the parts.
Connectivity joined(std::vector<Kept> parts, const MatrixNumbers& numbers, std::int64_t rows,
                    at::TensorOptions options) {
  const at::Tensor of_rows = at::zeros({rows}, options.dtype(at::kLong));
  const auto rows_of = [](const at::Tensor& t, const Kept& part) {
    return t.narrow(0, part.first_row, part.counts.numel());
  };
  for (const Kept& part : parts) rows_of(of_rows, part).add_(part.counts);
  Connectivity result = empty_matrix(of_rows, numbers);
  const at::Tensor next = result.indptr.slice(0, 0, -1).clone();
  for (Kept& part : parts) {
    const Connectivity& own = part.connections;
    const std::int64_t count = own.indices.numel();
    const at::Tensor shift = rows_of(next, part).sub(ends_of(part.counts).sub_(part.counts));
    const at::Tensor places = shift.repeat_interleave(part.counts, 0, count).add_(at::arange(count, shift.options()));
    result.indices.index_copy_(0, places, own.indices);
    if (own.weights.defined()) result.weights.index_copy_(0, places, own.weights);
    if (own.delays.defined()) result.delays.index_copy_(0, places, own.delays);
    rows_of(next, part).add_(part.counts);
    part = {};
  }
  return result;
}

// ---- The operator. Its lists cover all projections: ranges and choices have four entries per projection, numbers
// eight, laws two. ----

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
      "(Tensor indices, Tensor indptr, Tensor weights, Tensor delays)");
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

Connectivity connect_part(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections,
                          const ConnectivityPart& part, std::int64_t seed, at::ScalarType weight_type,
                          c10::Device device) {
  using namespace ops::sparse;
  device = check_connect(rows, cols, projections, weight_type, device);
  TORCH_CHECK_VALUE(part.columns.numel() == cols && part.first_rows.size() == projections.size(),
                    "connect_part: a part must map ", cols, " columns and ", projections.size(),
                    " projections, but does of ", part.columns.numel(), " and ", part.first_rows.size());
  const auto options = at::TensorOptions().device(device);
  const MatrixNumbers numbers(projections, weight_type, options);
  std::vector<Kept> kept;
  for (std::size_t i = 0; i < projections.size(); ++i) {
    const Projection& p = projections[i];
    if (!part.columns.slice(0, p.targets.begin, p.targets.end).ge(0).any().item<bool>()) continue;
    kept.push_back(keep(Drawing(p, i, seed, rows, options), numbers, part.columns, part.first_rows[i], options));
  }
  return joined(std::move(kept), numbers, part.rows, options);
}

}  // namespace spikeforge
