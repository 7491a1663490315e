// Sums spikes to currents: y_j = sum of events_i * weight_ij over the rows i whose event is not zero. Row i of the
// weights has the connections indptr[i] to indptr[i+1] of a neuron, indices are their targets (the CSR format). Rows
// without an event cost nothing; if few neurons fire, these are nearly all rows.
//
//   event_sum           a CPU function and a CUDA source; its result begins as zeros, for kernels that add to it
//   event_sum_backward  its vjp, an operator as well
#include <spikeforge/custom_op/custom_op.h>

#include <ATen/Parallel.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <vector>

namespace {

using spikeforge::CustomOp;
using spikeforge::custom_op::Arguments;
using spikeforge::custom_op::Dim3;
using spikeforge::custom_op::Result;
using spikeforge::custom_op::Tensors;

// --- CPU
// ---------------------------------------------------------------------------------------------------------------

template <class T> struct Connections {
  explicit Connections(const Arguments& in)
      : events(in.tensor("events").const_data_ptr<T>()),
        indices(in.tensor("indices").const_data_ptr<int>()),
        indptr(in.tensor("indptr").const_data_ptr<int>()),
        weight(in.tensor("weight").const_data_ptr<T>()),
        rows(in.tensor("events").numel()) {}

  const T* events;
  const int* indices;
  const int* indptr;
  const T* weight;
  std::int64_t rows;
};

template <class T> void add_rows(const Connections<T>& c, std::int64_t begin, std::int64_t end, T* y) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T event = c.events[row];
    if (event == 0) continue;
    for (int k = c.indptr[row]; k < c.indptr[row + 1]; ++k) y[c.indices[k]] += event * c.weight[k];
  }
}

// Each thread adds its share of the rows to separate sums, because two threads may have the same target.
template <class T> void event_sum_of(Tensors out, const Arguments& in) {
  const Connections<T> c(in);
  const std::int64_t threads = at::get_num_threads();
  if (threads == 1) return add_rows(c, 0, c.rows, out[0].mutable_data_ptr<T>());
  const at::Tensor sums = at::zeros({threads, out[0].numel()}, out[0].options());
  at::parallel_for(0, threads, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t)
      add_rows(c, c.rows * t / threads, c.rows * (t + 1) / threads, sums[t].mutable_data_ptr<T>());
  });
  at::Tensor y = out[0];
  at::sum_out(y, sums, 0);
}

template <class T> void event_sum_backward_of(Tensors out, const Arguments& in) {
  const Connections<T> c(in);
  const T* const grad = in.tensor("grad").const_data_ptr<T>();
  T* const grad_events = out[0].mutable_data_ptr<T>();
  T* const grad_weight = out[1].mutable_data_ptr<T>();
  at::parallel_for(0, c.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      T sum = 0;
      for (int k = c.indptr[row]; k < c.indptr[row + 1]; ++k) {
        const T g = grad[c.indices[k]];
        sum += g * c.weight[k];
        grad_weight[k] = g * c.events[row];
      }
      grad_events[row] = sum;
    }
  });
}

void event_sum_cpu(Tensors out, const Arguments& in) {
  in.dtype("events") == at::kDouble ? event_sum_of<double>(out, in) : event_sum_of<float>(out, in);
}

void event_sum_backward_cpu(Tensors out, const Arguments& in) {
  in.dtype("events") == at::kDouble ? event_sum_backward_of<double>(out, in) : event_sum_backward_of<float>(out, in);
}

// --- GPU: 32 threads per row
// --------------------------------------------------------------------------------------------

constexpr const char* event_sum_cuda = R"(
extern "C" __global__ void event_sum(Array<const events_t> events, Array<const indices_t> indices,
                                     Array<const indptr_t> indptr, Array<const weight_t> weight,
                                     long long columns, Array<y_t> y) {
  const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
  if (row >= events.numel) return;
  const y_t event = events[row];
  if (event == 0) return;
  for (int k = indptr[row] + threadIdx.x % 32; k < indptr[row + 1]; k += 32)
    atomicAdd(&y[indices[k]], event * weight[k]);
}
)";

constexpr const char* event_sum_backward_cuda = R"(
extern "C" __global__ void event_sum_backward(Array<const grad_t> grad, Array<const events_t> events,
                                              Array<const indices_t> indices, Array<const indptr_t> indptr,
                                              Array<const weight_t> weight, long long columns,
                                              Array<grad_events_t> grad_events, Array<grad_weight_t> grad_weight) {
  const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
  if (row >= events.numel) return;
  const grad_events_t event = events[row];
  grad_events_t sum = 0;
  for (int k = indptr[row] + threadIdx.x % 32; k < indptr[row + 1]; k += 32) {
    const grad_events_t g = grad[indices[k]];
    sum += g * weight[k];
    grad_weight[k] = g * event;
  }
  for (int far = 16; far > 0; far /= 2) sum += __shfl_down_sync(0xffffffff, sum, far);
  if (threadIdx.x % 32 == 0) grad_events[row] = sum;
}
)";

Dim3 warp_a_row(const Arguments& in, Tensors) { return {.x = (32 * in.tensor("events").numel() + 255) / 256}; }

// --- the operators
// -----------------------------------------------------------------------------------------------------

CustomOp event_sum_backward() {
  CustomOp op(
      "mine::event_sum_backward(Tensor grad, Tensor events, Tensor indices, Tensor indptr, Tensor weight, "
      "SymInt columns) -> (Tensor grad_events, Tensor grad_weight)");
  op.shapes([](const Arguments& in) {
      return std::vector<Result>{in.like("events"), in.like("weight")};
    })
      .cpu(event_sum_backward_cpu)
      .cuda({.source = event_sum_backward_cuda, .entry = "event_sum_backward", .grid = warp_a_row});
  return op;
}

CustomOp event_sum() {
  CustomOp op(
      "mine::event_sum(Tensor events, Tensor indices, Tensor indptr, Tensor weight, SymInt columns) -> Tensor y");
  op.shapes([](const Arguments& in) {
      return std::vector<Result>{{.sizes = {in.symbol("columns")}, .dtype = in.dtype("events")}};
    })
      .dtypes("events", {at::kFloat, at::kDouble})
      .dtypes("indices", {at::kInt})
      .dtypes("indptr", {at::kInt})
      .zero_results()
      .cpu(event_sum_cpu)
      .cuda({.source = event_sum_cuda, .entry = "event_sum", .grid = warp_a_row})
      .differentiable({"events", "weight"})
      .vjp("mine::event_sum_backward");
  return op;
}

}  // namespace

SPIKEFORGE_OPERATORS() { return {event_sum_backward(), event_sum()}; }
