#include "ops/event.h"
#include "ops/common/library.h"
#include "ops/event/jit_delays.h"
#include "ops/event/linear.h"
#include "ops/event/product.h"

#include <c10/util/Exception.h>

#include <tuple>

namespace spikeforge {
namespace {

using ops::find_operator;
using ops::sparse::Values;

std::string_view values_of(const EventProductOptions& options) {
  return name_of(ops::sparse::event_values(options.graded));
}

template <class Options>
at::Tensor product(const Connections& m, const at::Tensor& x, bool matrix, std::string_view values, const Options& o) {
  return ops::sparse::product_kernel<ops::sparse::call_product>(
      m.weights, m.indices, m.indptr, x, m.rows, m.cols, o.transpose, matrix, values, o.deterministic, m.unchecked);
}

at::Tensor product(const RandomConnections& m, const at::Tensor& x, bool matrix, const EventProductOptions& o) {
  return ops::sparse::jit_kernel<ops::sparse::call_jit>(m.weights, x, m.rows, m.cols, m.prob, m.seed, m.law,
                                                        o.transpose, matrix, values_of(o), o.deterministic);
}

template <class Result, Result (*deliver)(const ops::sparse::DeliverCall&)>
Result delivered(const Connections& m, const at::Tensor& events, const at::Tensor& delays, const at::Tensor& buffer,
                 const at::Tensor& step, const EventProductOptions& o) {
  return ops::sparse::deliver_kernel<Result, deliver>(m.weights, m.indices, m.indptr, events, delays, buffer, step,
                                                      m.rows, m.cols, o.transpose, values_of(o), o.deterministic,
                                                      m.unchecked);
}

template <class Result, Result (*deliver)(const ops::sparse::JitDeliverCall&)>
Result delivered(const RandomConnections& m, const at::Tensor& events, const DrawnDelays& delays,
                 const at::Tensor& buffer, const at::Tensor& step, const EventProductOptions& o) {
  return ops::sparse::jit_deliver_kernel<Result, deliver>(m.weights, events, buffer, step, m.rows, m.cols, m.prob,
                                                          m.seed, delays.numbers, m.law, delays.law, o.transpose,
                                                          values_of(o), o.deterministic);
}

const at::Tensor& indptr_of(const Connections& matrix, const char* op) {
  TORCH_CHECK_VALUE(matrix.indptr.has_value(), op, ": the matrix must have indptr; the ELL form has none");
  return *matrix.indptr;
}

}  // namespace

void Connections::check(bool sorted) const {
  using Schema = void(const at::Tensor&, const at::Tensor&, std::int64_t, std::int64_t, bool);
  static const auto op = find_operator<Schema>("spikeforge::csr_check");
  op.call(indices, indptr_of(*this, "csr_check"), rows, cols, sorted);
}

at::Tensor event_mv(const Connections& matrix, const at::Tensor& events, const EventProductOptions& options) {
  return product(matrix, events, false, values_of(options), options);
}
at::Tensor event_mm(const Connections& matrix, const at::Tensor& events, const EventProductOptions& options) {
  return product(matrix, events, true, values_of(options), options);
}
at::Tensor sparse_mv(const Connections& matrix, const at::Tensor& vector, const ProductOptions& options) {
  return product(matrix, vector, false, name_of(Values::number), options);
}
at::Tensor sparse_mm(const Connections& matrix, const at::Tensor& vectors, const ProductOptions& options) {
  return product(matrix, vectors, true, name_of(Values::number), options);
}
at::Tensor event_mv(const RandomConnections& matrix, const at::Tensor& events, const EventProductOptions& options) {
  return product(matrix, events, false, options);
}
at::Tensor event_mm(const RandomConnections& matrix, const at::Tensor& events, const EventProductOptions& options) {
  return product(matrix, events, true, options);
}

at::Tensor event_mv_delayed(const Connections& matrix, const at::Tensor& events, const at::Tensor& delays,
                            const at::Tensor& buffer, const at::Tensor& step, const EventProductOptions& options) {
  return delivered<at::Tensor, ops::sparse::call_deliver>(matrix, events, delays, buffer, step, options);
}
void event_mv_delayed_(const Connections& matrix, const at::Tensor& events, const at::Tensor& delays,
                       const at::Tensor& buffer, const at::Tensor& step, const EventProductOptions& options) {
  delivered<void, ops::sparse::call_deliver_>(matrix, events, delays, buffer, step, options);
}
at::Tensor event_mv_delayed(const RandomConnections& matrix, const at::Tensor& events, const DrawnDelays& delays,
                            const at::Tensor& buffer, const at::Tensor& step, const EventProductOptions& options) {
  return delivered<at::Tensor, ops::sparse::call_deliver>(matrix, events, delays, buffer, step, options);
}
void event_mv_delayed_(const RandomConnections& matrix, const at::Tensor& events, const DrawnDelays& delays,
                       const at::Tensor& buffer, const at::Tensor& step, const EventProductOptions& options) {
  delivered<void, ops::sparse::call_deliver_>(matrix, events, delays, buffer, step, options);
}

std::pair<at::Tensor, at::Tensor> take_arrivals(const at::Tensor& buffer, const at::Tensor& step) {
  auto [arrivals, left] = ops::sparse::call_take(buffer, step);
  return {std::move(arrivals), std::move(left)};
}
at::Tensor take_arrivals_(const at::Tensor& buffer, const at::Tensor& step) {
  return ops::sparse::call_take_(buffer, step);
}

at::Tensor event_linear(const at::Tensor& events, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                        bool graded) {
  return ops::sparse::call_linear(events, weight, bias, graded);
}

at::Tensor pack_events(const at::Tensor& events) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&)>("spikeforge::pack_events");
  return op.call(events);
}

at::Tensor unpack_events(const at::Tensor& packed, std::int64_t n) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, c10::SymInt)>("spikeforge::unpack_events");
  return op.call(packed, n);
}

ByColumns by_columns(const Connections& matrix) {
  using Schema =
      std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, std::int64_t, std::int64_t);
  static const auto op = find_operator<Schema>("spikeforge::csr_transpose");
  auto [indices, indptr, slots] = op.call(matrix.indices, indptr_of(matrix, "csr_transpose"), matrix.rows, matrix.cols);
  return {std::move(indices), std::move(indptr), std::move(slots)};
}

void stdp_pre_(Connections& matrix, const at::Tensor& events, const at::Tensor& trace, const ClipRange& range) {
  using Schema = void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      std::int64_t, std::int64_t, std::optional<double>, std::optional<double>, bool);
  static const auto op = find_operator<Schema>("spikeforge::stdp_pre_");
  op.call(matrix.weights, matrix.indices, indptr_of(matrix, "stdp_pre"), events, trace, matrix.rows, matrix.cols,
          range.least, range.most, matrix.unchecked);
}

void stdp_post_(Connections& matrix, const ByColumns& columns, const at::Tensor& events, const at::Tensor& trace,
                const ClipRange& range) {
  using Schema =
      void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
           const at::Tensor&, std::int64_t, std::int64_t, std::optional<double>, std::optional<double>, bool);
  static const auto op = find_operator<Schema>("spikeforge::stdp_post_");
  op.call(matrix.weights, columns.indices, columns.indptr, columns.slots, events, trace, matrix.rows, matrix.cols,
          range.least, range.most, matrix.unchecked);
}

at::Tensor plastic_step_(std::string_view rule, at::TensorList states, at::TensorList traces, const Connections& matrix,
                         const ByColumns& columns, const at::Tensor& pre, const at::Tensor& post,
                         const PlasticOptions& options) {
  using Signals = c10::List<std::optional<at::Tensor>>;
  using Schema =
      at::Tensor(std::string_view, at::TensorList, at::TensorList, const at::Tensor&, const at::Tensor&, at::TensorList,
                 const at::Tensor&, const at::Tensor&, const Signals&, const std::optional<at::Tensor>&,
                 c10::ArrayRef<double>, std::int64_t, std::int64_t, bool, bool, bool);
  static const auto op = find_operator<Schema>("spikeforge::plastic_step_");
  Signals signals;
  for (const std::optional<at::Tensor>& signal : options.signals) signals.push_back(signal);
  const std::vector<at::Tensor> by_columns{columns.indices, columns.indptr, columns.slots};
  return op.call(rule, states, traces, matrix.indices, indptr_of(matrix, "plastic_step"), by_columns, pre, post,
                 signals, options.step, options.params, matrix.rows, matrix.cols, options.sends, options.refresh,
                 matrix.unchecked);
}

}  // namespace spikeforge
