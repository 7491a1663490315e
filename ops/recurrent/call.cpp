#include "ops/recurrent/call.h"
#include "ops/common/checks.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/logical_or.h>
#include <c10/util/Exception.h>

#include <limits>

namespace spikeforge::ops::recurrent {
namespace {

constexpr const char* backward_op = "recurrent_run_backward";

Leader leader_of(const char* name, const MultistepCall& call) {
  return {name, call.cell->inputs[0].c_str(), call.inputs[0]};
}

void check_options(const char* name, const MultistepCall& call, const at::Tensor& w, std::int64_t into,
                   std::int64_t delay) {
  check_recurrent(name, call, into);
  const Leader leader = leader_of(name, call);
  TORCH_CHECK_VALUE(delay >= 1 && delay <= std::numeric_limits<std::int32_t>::max(), name,
                    ": delay must be 1 or more steps, and below 2^31, but is ", delay);
  const at::Tensor& x = leader.tensor;
  const c10::SymInt width = x.sym_size(-1);
  TORCH_CHECK_VALUE(w.dim() == 2 && w.sym_size(0) == width && w.sym_size(1) == width, name, ": w must have shape [",
                    width, ", ", width, "], from neuron to neuron of ", leader.name, ", but has ", w.sym_sizes());
  check_dense(name, "w", w);
  TORCH_CHECK_TYPE(w.scalar_type() == x.scalar_type(), name, ": w must be ", x.scalar_type(), ", the type of ",
                   leader.name, ", but is ", w.scalar_type(), "; pass w.to(", leader.name, ".dtype)");
  check_device(leader, "w", w);
}

template <class Int> c10::ArrayRef<Int> sizes_of(const at::Tensor& t) {
  if constexpr (std::is_same_v<Int, c10::SymInt>)
    return t.sym_sizes();
  else
    return t.sizes();
}

Recurrence recurrence_of(const Prepared& prepared, std::int64_t into, std::int64_t delay, const at::Tensor& w) {
  const std::int64_t width = w.size(0);
  return {.batch = width == 0 ? 0 : prepared.layout.neurons / width,
          .width = width,
          .into = static_cast<std::size_t>(into),
          .delay = delay,
          .w = w.const_data_ptr()};
}

}  // namespace

void check_recurrent(const char* name, const MultistepCall& call, std::int64_t into) {
  const Leader leader = leader_of(name, call);
  const at::Tensor& x = leader.tensor;
  TORCH_CHECK_VALUE(x.dim() >= 2, name, ": ", leader.name, " must be [T, *batch, H], but has shape ", x.sym_sizes());
  TORCH_CHECK_VALUE(!call.cell->outputs.empty(), name, ": ", call.cell->name, " has no output to feed back");
  const auto inputs = static_cast<std::int64_t>(call.inputs.size());
  TORCH_CHECK_VALUE(into >= 0 && into < inputs, name, ": into must be the number of an input, 0 to ", inputs - 1,
                    ", but is ", into);
  for (const at::Tensor* t : {&call.lengths, &call.start})
    TORCH_CHECK_VALUE(!t->defined() || t->sym_size(-1) == 1, name, ": ", t == &call.start ? "start" : "lengths",
                      " must be the same for all neurons of a sample, but has shape ", t->sym_sizes());
}

void check_spikes(const char* name, const MultistepCall& call, const at::Tensor& spikes, std::int64_t delay) {
  if (!spikes.defined()) return;
  const Leader leader = leader_of(name, call);
  c10::SymDimVector shape(leader.tensor.sym_sizes());
  shape[0] = delay;
  TORCH_CHECK_VALUE(spikes.sym_sizes() == c10::SymIntArrayRef(shape), name, ": spikes must have shape ",
                    c10::SymIntArrayRef(shape), ", the last delay steps before the first one, but has ",
                    spikes.sym_sizes());
  check_dense(name, "spikes", spikes);
  check_same_type(leader, "spikes", spikes);
  check_device(leader, "spikes", spikes);
}

void check(const RecurrentCall& call) {
  refuse_draws(*call.cell, op);
  check_arguments(call);
  check_options(op, call, call.w, call.into, call.delay);
  check_spikes(op, call, call.spikes, call.delay);
}

void check(const RecurrentBackwardCall& call) {
  check_arguments(call);
  check_options(backward_op, call, call.w, call.into, call.delay);
}

void set_gradients(BackwardCall& call, Tensors& all, std::int64_t into, const OptionalTensorList& grads,
                   const c10::List<bool>& needs_grad, std::size_t others) {
  const Cell& cell = *call.cell;
  const std::size_t results = cell.outputs.size() + cell.states.size();
  TORCH_CHECK_VALUE(grads.size() == results, backward_op, ": grads must have ", results,
                    " entries, one for each output and state, but has ", grads.size());
  const std::size_t arguments = call.inputs.size() + call.states.size() + call.params.size() + others;
  TORCH_CHECK_VALUE(needs_grad.size() == arguments, backward_op, ": needs_grad must have ", arguments,
                    " entries, one for each of the arguments, but has ", needs_grad.size());
  TORCH_CHECK_VALUE(needs_grad.get(static_cast<std::size_t>(into)), backward_op,
                    ": the gradient of the current, arguments[", into, "], must be in needs_grad");
  for (const std::optional<at::Tensor> grad : grads) all.push_back(grad.value_or(at::Tensor()));
  call.grad_outputs = at::TensorList(all).slice(0, cell.outputs.size());
  call.grad_states = at::TensorList(all).slice(cell.outputs.size());
  for (std::size_t i = 0, next = 0; i < cell.arguments(); ++i) {
    const bool is_state = i >= call.inputs.size() && i < call.inputs.size() + cell.states.size();
    call.needs_grad.push_back((!is_state || !call.states.empty()) && needs_grad.get(next++));
  }
}

template <class Int> Preparation<Int> prepare_samples(const MultistepCall& call) {
  const at::Tensor& first = call.inputs[0];
  const c10::ScalarType type = first.scalar_type();
  Preparation<Int> prepared;
  prepared.first_input = first;
  if constexpr (std::is_same_v<Int, std::int64_t>)
    if (!first.numel() || !first.select(0, 0).is_contiguous()) prepared.first_input = first.contiguous();
  Layout<Int>& layout = prepared.layout;
  const auto sizes = sizes_of<Int>(first);
  layout.steps = sizes[0];
  layout.sizes.append(sizes.begin() + 1, sizes.end());
  layout.strides.assign(layout.sizes.size(), Int(1));
  for (std::size_t d = layout.sizes.size(); d-- > 1;) layout.strides[d - 1] = layout.strides[d] * layout.sizes[d];
  layout.neurons = 1;
  for (const Int& size : layout.sizes) layout.neurons = layout.neurons * size;
  prepared.options = first.options();
  prepared.state_options = prepared.options.dtype(state_type(type));
  prepared.checkpoint_length = call.cell->checkpoint_length(dtype_of(type));
  return prepared;
}

template <class Int> RecurrentResults allocate(const MultistepCall& call, const Preparation<Int>& prepared, bool save) {
  RecurrentResults results{allocate_forward(call, prepared, save), {}};
  if (save) results.current = prepared.layout.empty_sequence(prepared.options);
  return results;
}

DescribedForward::DescribedForward(const RecurrentCall& call, const Prepared& prepared, const RecurrentResults& results)
    : step_(call, prepared, results), w_(call.w.contiguous()) {
  static_cast<ForwardLaunch&>(launch) = step_.launch;
  launch.recurrence = recurrence_of(prepared, call.into, call.delay, w_);
  if (call.spikes.defined()) {
    spikes_ = call.spikes.contiguous();
    launch.spikes = {.data = spikes_.const_data_ptr(), .time_stride = launch.neurons};
  }
  if (results.current.defined()) launch.current = results.current.mutable_data_ptr();
}

DescribedBackward::DescribedBackward(const RecurrentBackwardCall& call, const Prepared& prepared,
                                     const Gradients& gradients)
    : step_(call, prepared, gradients), w_(call.w.contiguous()) {
  static_cast<BackwardLaunch&>(launch) = step_.launch;
  launch.recurrence = recurrence_of(prepared, call.into, call.delay, w_);
}

RecurrentResults forward_meta(const RecurrentCall& call, bool save) {
  return allocate(call, prepare_samples<c10::SymInt>(call), save);
}

Tensors backward_meta(const RecurrentBackwardCall& call) {
  return reduce_and_list(call, check_and_allocate(call, prepare_samples<c10::SymInt>(call)));
}

at::Tensor is_unheard(const at::Tensor& start, std::int64_t delay) {
  at::Tensor any = start;
  for (std::int64_t back = 1; back < delay && back < start.sym_size(0); ++back) {
    c10::SymDimVector pad(static_cast<std::size_t>(2 * start.dim()), 0);
    pad[pad.size() - 2] = back;
    pad.back() = -back;
    any = at::logical_or(any, at::constant_pad_nd_symint(start, pad));
  }
  return any;
}

template Preparation<std::int64_t> prepare_samples(const MultistepCall&);
template RecurrentResults allocate(const MultistepCall&, const Prepared&, bool);

List arguments_of(const MultistepCall& call) {
  return traced::arguments_of(call.inputs, traced::given_states(call), call.params);
}

MultistepCall call_of(std::string_view neuron, bool store_states) {
  MultistepCall call;
  call.holder = cell_of(neuron, op);
  call.cell = call.holder.get();
  refuse_draws(*call.cell, op);
  call.store_states = store_states;
  call.op = op;
  return call;
}

void set_arguments(MultistepCall& call, at::TensorList arguments, OptionalTensor lengths, OptionalTensor start) {
  const auto [inputs, states, params] = traced::split(op, *call.cell, arguments);
  call.inputs = inputs;
  call.states = states;
  call.params = params;
  call.lengths = lengths.value_or(at::Tensor());
  call.start = start.value_or(at::Tensor());
}

std::tuple<List, List, List> lowered(RecurrentResults&& results, bool save) {
  List saved;
  if (save) saved = {results.current, results.checkpoints};
  return {traced::list_of(std::move(results.outputs)), traced::list_of(std::move(results.states)), std::move(saved)};
}

RecurrentResults raised(const std::tuple<List, List, List>& lowered) {
  const auto& [outputs, states, saved] = lowered;
  RecurrentResults results;
  results.outputs = traced::tensors_of(outputs);
  results.states = traced::tensors_of(states);
  if (!saved.empty()) {
    results.current = saved[0];
    results.checkpoints = saved[1];
  }
  return results;
}

OptionalTensorList upstream_of(const BackwardCall& call) {
  OptionalTensorList grads;
  for (const at::TensorList list : {call.grad_outputs, call.grad_states})
    for (const at::Tensor& t : list) grads.push_back(maybe(t));
  return grads;
}

RecurrentResults call_forward(const RecurrentCall& call, bool save) {
  static const auto handle = find_operator<Forward>("spikeforge::recurrent_run_forward");
  return raised(handle.call(traced::LoweredText(call).text(), arguments_of(call), call.w, maybe(call.spikes), call.into,
                            call.delay, call.store_states, save, maybe(call.lengths), maybe(call.start)));
}

Tensors call_backward(const RecurrentBackwardCall& call) {
  static const auto handle = find_operator<Backward>("spikeforge::recurrent_run_backward");
  return traced::tensors_of(handle.call(traced::LoweredText(call).text(), upstream_of(call), arguments_of(call), call.w,
                                        call.checkpoints, traced::needs_grad_of_given(call), call.into, call.delay,
                                        call.store_states, maybe(call.lengths), maybe(call.start)));
}

}  // namespace spikeforge::ops::recurrent
