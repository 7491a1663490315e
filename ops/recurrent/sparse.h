// A call of sparse_recurrent_run and of its lowered operators: a recurrent layer whose connections are a sparse matrix
// with a delay for each of them.
#pragma once

#include "ops/common/sparse_products.h"
#include "ops/recurrent/call.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace spikeforge::ops::recurrent {

inline constexpr const char* sparse_op = "sparse_recurrent_run";

// Row i of the matrix contains the connections from neuron i.
struct Connections {
  at::Tensor weights;          // one per connection, or one for all
  at::Tensor indices, indptr;  // CSR
  at::Tensor delays;           // uint8 or int32, 1 to max_delay: one per connection, or one for all
  std::int64_t max_delay = 1;
  sparse::Values values{};  // how the neurons' output is read

  bool are_homogeneous() const { return weights.sym_numel() == 1; }
};

struct SparseCall : MultistepCall {
  Connections connections;
  at::Tensor spikes;  // [max_delay, *batch, H] before the first step; undefined: zeros
  std::int64_t into = 0;
};

struct SparseBackwardCall : BackwardCall {
  Connections connections;
  at::Tensor spikes, output;  // as in the forward pass
  std::int64_t into = 0;
  bool wants_weights = false, wants_spikes = false;
};

// Throws TypeError and ValueError. Checks the matrix too, on a GPU without synchronisation.
void check(const SparseCall& call);

RecurrentResults forward_sparse(const SparseCall& call, bool save);
RecurrentResults forward_sparse_meta(const SparseCall& call, bool save);
// Returns the wanted gradients in the order of the arguments, followed by those of weights and spikes.
Tensors backward_sparse(const SparseBackwardCall& call);
Tensors backward_sparse_meta(const SparseBackwardCall& call);

// ---- calls through the dispatcher ----

RecurrentResults call_forward(const SparseCall& call, bool save);
Tensors call_backward(const SparseBackwardCall& call);

using SparseRun = traced::Outputs(std::string_view, at::TensorList, const at::Tensor&, const at::Tensor&,
                                  const at::Tensor&, const at::Tensor&, at::TensorList, at::TensorList,
                                  const MaybeTensor&, std::int64_t, std::int64_t, std::string_view, bool,
                                  OptionalTensor, OptionalTensor);

// Converts `run` to a kernel for the dispatcher.
template <RecurrentResults (*run)(const SparseCall&)>
traced::Outputs sparse_kernel(std::string_view neuron, at::TensorList inputs, const at::Tensor& weights,
                              const at::Tensor& indices, const at::Tensor& indptr, const at::Tensor& delays,
                              at::TensorList states, at::TensorList params, const MaybeTensor& spikes,
                              std::int64_t max_delay, std::int64_t into, std::string_view values, bool store_states,
                              OptionalTensor lengths, OptionalTensor start) {
  SparseCall call{traced_call(neuron, inputs, states, params, store_states),
                  {weights, indices, indptr, delays, max_delay, sparse::parse_values(values, sparse_op)},
                  spikes.value_or(at::Tensor()),
                  into};
  call.op = sparse_op;
  set_samples(call, lengths, start);
  check(call);
  return traced::outputs_of(run(call));
}

template <RecurrentResults (*forward)(const SparseCall&, bool save)>
std::tuple<List, List, List> sparse_forward_kernel(std::string_view neuron, at::TensorList arguments,
                                                   const at::Tensor& weights, const at::Tensor& indices,
                                                   const at::Tensor& indptr, const at::Tensor& delays,
                                                   const MaybeTensor& spikes, std::int64_t max_delay, std::int64_t into,
                                                   std::string_view values, bool store_states, bool save,
                                                   OptionalTensor lengths, OptionalTensor start) {
  SparseCall call{call_of(neuron, store_states),
                  {weights, indices, indptr, delays, max_delay, sparse::parse_values(values, sparse_op)},
                  spikes.value_or(at::Tensor()),
                  into};
  set_arguments(call, arguments, lengths, start);
  check(call);
  return lowered(forward(call, save), save);
}

// The last two entries of needs_grad are those of weights and spikes.
template <Tensors (*backward)(const SparseBackwardCall&)>
List sparse_backward_kernel(std::string_view neuron, const OptionalTensorList& grads, at::TensorList arguments,
                            const at::Tensor& output, const at::Tensor& weights, const at::Tensor& indices,
                            const at::Tensor& indptr, const at::Tensor& delays, const MaybeTensor& spikes,
                            const at::Tensor& checkpoints,
                            c10::List<bool> needs_grad,  // NOLINT(performance-unnecessary-value-param)
                            std::int64_t max_delay, std::int64_t into, std::string_view values, bool store_states,
                            OptionalTensor lengths, OptionalTensor start) {
  SparseBackwardCall call;
  static_cast<MultistepCall&>(call) = call_of(neuron, store_states);
  set_arguments(call, arguments, lengths, start);
  call.connections = {weights, indices, indptr, delays, max_delay, sparse::parse_values(values, sparse_op)};
  call.spikes = spikes.value_or(at::Tensor());
  call.output = output;
  call.into = into;
  call.checkpoints = checkpoints;
  Tensors all;
  set_gradients(call, all, into, grads, needs_grad, /*others=*/2);
  call.wants_weights = needs_grad.get(needs_grad.size() - 2);
  call.wants_spikes = needs_grad.get(needs_grad.size() - 1);
  return traced::list_of(backward(call));
}

}  // namespace spikeforge::ops::recurrent
