// Products whose results arrive later, the base of event_csrmv_delayed, event_ellmv_delayed and take_arrivals: spikes
// in flight are stored in a ring of slots.
#pragma once

#include "ops/event/product.h"

#include <ATen/ops/empty.h>

#include <tuple>
#include <vector>

namespace spikeforge::ops::sparse {

// csr_deliver: adds the product's result to buffer[(step + delay) % slots].
struct DeliverCall {
  ProductCall product;
  const at::Tensor& delays;  // uint8 or int32: of the shape of indices, or one element
  const at::Tensor& buffer;  // [slots, *batch, out], in the type of sums
  const at::Tensor& step;    // int64, 0-dimensional

  const char* name() const;
  // Returns the same call with other entries and another buffer.
  DeliverCall with(const at::Tensor& x, const at::Tensor& other) const {
    return {{product.weights, product.indices, product.indptr, x, product.options}, delays, other, step};
  }
};

// Checks the buffer and the step of a call, for any kind of matrix.
void check_ring(const char* op, const at::Tensor& weights, const at::Tensor& x, const Options& options,
                const at::Tensor& buffer, const at::Tensor& step);

void check_deliver(const DeliverCall& call);

// The buffer of an in-place operator, after all checks. Kernels change contiguous memory, which is written back. Inputs
// that share memory with the buffer are copied, so that their original values are read.
class ChangedBuffer {
 public:
  ChangedBuffer(const char* op, const at::Tensor& buffer);

  const at::Tensor& contiguous() const { return changed_; }
  // Returns t, or a copy if it shares memory with the buffer.
  at::Tensor apart(const at::Tensor& t) const { return share_memory(t, changed_) ? t.clone() : t; }
  void write_back() const;

 private:
  const at::Tensor& buffer_;
  at::Tensor changed_;
};

// Returns the offsets of slots relative to a step: element d is the slot in which delay d arrives.
std::vector<std::int64_t> slot_offsets(const at::Tensor& buffer, const at::Tensor& step);

StoredMatrix stored_matrix(const DeliverCall& call);
event::Product gpu_delivery(const DeliverCall& call, const event::Rows& rows);

// Runs a checked call with a contiguous buffer.
void deliver_cpu(const DeliverCall& call);
void deliver_cuda(const DeliverCall& call);
// Takes the arrivals of a step, for a contiguous buffer and a step on a GPU.
void take_cuda(const at::Tensor& buffer, const at::Tensor& step, const at::Tensor& arrivals);

// Call the lowered operators through the dispatcher.
at::Tensor call_deliver(const DeliverCall& call);
void call_deliver_(const DeliverCall& call);
std::tuple<at::Tensor, at::Tensor> call_take(const at::Tensor& buffer, const at::Tensor& step);
at::Tensor call_take_(const at::Tensor& buffer, const at::Tensor& step);

// Shared kernels of csr_deliver and jit_deliver. deliver_ changes the buffer.
template <class Call, void (*deliver_)(const Call&)> at::Tensor deliver(const Call& call) {
  check_deliver(call);
  at::Tensor result = call.buffer.clone(at::MemoryFormat::Contiguous);
  deliver_(call.with(call.product.x, result));
  return result;
}
template <class Call> at::Tensor deliver_meta(const Call& call) {
  check_deliver(call);
  return at::empty_symint(call.buffer.sym_sizes(), call.buffer.options());
}

// Converts `run` to a kernel for the dispatcher.
template <class Result, Result (*run)(const DeliverCall&)>
Result deliver_kernel(const at::Tensor& weights, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                      const at::Tensor& x, const at::Tensor& delays, const at::Tensor& buffer, const at::Tensor& step,
                      c10::SymInt rows, c10::SymInt cols, bool transpose, std::string_view values, bool deterministic,
                      bool unchecked) {
  return run({{weights,
               indices,
               indptr,
               x,
               {std::move(rows), std::move(cols), transpose, false, parse_values(values), deterministic, unchecked}},
              delays,
              buffer,
              step});
}

}  // namespace spikeforge::ops::sparse
