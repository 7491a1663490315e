// A part of a matrix that is drawn by rule, for one of several processes. The place of a connection in its row selects
// the random number of its weight, so a projection is drawn whole before connections are dropped.
#include "ops/connect.h"
#include "ops/event/connect_matrix.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

namespace spikeforge::ops::sparse {
namespace {

// The connections of one projection.
struct Kept {
  at::Tensor counts;  // int64 [sources]
  std::int64_t first_row = 0;
  Connectivity connections;  // indptr is not defined; weights and delays where each has its own
};

at::Tensor ends_of(const at::Tensor& counts) { return counts.cumsum(0, at::kLong); }

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

// By rows; within a row in the order of projections. Consumes the parts.
Connectivity joined(std::vector<Kept> parts, const MatrixNumbers& numbers, std::int64_t rows,
                    at::TensorOptions options) {
  const at::Tensor of_rows = at::zeros({rows}, options.dtype(at::kLong));
  const auto rows_of = [](const at::Tensor& t, const Kept& part) {
    return t.narrow(0, part.first_row, part.counts.numel());
  };
  for (const Kept& part : parts) rows_of(of_rows, part).add_(part.counts);
  Connectivity result{.indices = {}, .indptr = at::zeros({rows + 1}, of_rows.options()), .weights = {}, .delays = {}};
  result.indptr.slice(0, 1).copy_(ends_of(of_rows));
  const auto nnz = result.indptr.select(0, rows).item<std::int64_t>();
  result.indices = at::empty({nnz}, options.dtype(at::kInt));
  result.weights = numbers.room_for_weights(nnz);
  result.delays = numbers.room_for_delays(nnz);
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

}  // namespace
}  // namespace spikeforge::ops::sparse

namespace spikeforge {

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
