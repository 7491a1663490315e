#include "ops/multistep/multistep.h"
#include "ops/common/checks.h"
#include "ops/multistep/draws.h"

#include <c10/util/Exception.h>

#include <string>

namespace spikeforge::ops {
namespace {

void check_integers(const Leader& leader) {
  const auto& [op, name, x] = leader;
  TORCH_CHECK_TYPE(x.scalar_type() == at::kInt, op, ": ", name, " must be int32, but is ", x.scalar_type(), "; pass ",
                   name, ".to(torch.int32)");
  check_steps(leader);
}

void check_input(const Leader& leader, const char* name, const at::Tensor& input) {
  const at::Tensor& first = leader.tensor;
  TORCH_CHECK_VALUE(input.sym_sizes() == first.sym_sizes(), leader.op, ": ", name, " must have shape ",
                    first.sym_sizes(), ", that of ", leader.name, ", but has ", input.sym_sizes(),
                    "; inputs do not broadcast: pass ", name, ".expand_as(", leader.name, ")");
  check_dense(leader.op, name, input);
  check_same_type(leader, name, input);
  check_device(leader, name, input);
}

DType arithmetic_of(const MultistepCall& call) { return compute_type(dtype_of(call.inputs[0].scalar_type())); }

ParamView view_of(const MultistepCall& call, std::size_t j, const PlainLayout& layout, Copies& copies) {
  if (!call.param(j).defined()) return {.number = call.numbers[j]};
  const c10::ScalarType type = call.inputs[0].scalar_type();
  const ParamView view = view_param(call.param(j), type, state_type(type), layout, copies);
  // A single value that was read can be checked for any device. A tensor without elements has no value.
  if (view.data == nullptr && call.param(j).numel() == 1)
    check_number(call.op_name(), call.cell->params[j], view.number, arithmetic_of(call));
  return view;
}

}  // namespace

void check_arguments(const MultistepCall& call) {
  const Cell& cell = *call.cell;
  const Leader leader{call.op_name(), cell.inputs[0].c_str(), call.inputs[0]};
  TORCH_CHECK_TYPE(!leader.tensor.is_nested(), leader.op, ": ", leader.name,
                   " must be a dense tensor, but is nested; pad its sequences, and pass lengths");
  TORCH_CHECK_TYPE(leader.tensor.layout() == c10::kStrided, leader.op, ": ", leader.name,
                   " must be a dense tensor, but its layout is ", leader.tensor.layout(), "; pass ", leader.name,
                   ".to_dense()");
  cell.is_integer ? check_integers(leader) : check_leader(leader);
  for (std::size_t i = 1; i < call.inputs.size(); ++i) check_input(leader, cell.inputs[i].c_str(), call.inputs[i]);
  for (std::size_t s = 0; s < cell.states.size(); ++s)
    if (call.state(s).defined()) check_state(leader, cell.states[s].c_str(), call.state(s));
  for (std::size_t j = 0; j < cell.params.size(); ++j)
    if (call.param(j).defined())
      check_param(leader, cell.params[j].name.c_str(), call.param(j));
    else
      check_number(leader.op, cell.params[j], call.numbers[j], arithmetic_of(call));
  check_samples(leader, call.lengths, call.start);
  check_draws(call);
}

void refuse_values(const MultistepCall& call) {
  const Cell& cell = *call.cell;
  for (std::size_t j = 0; j < cell.params.size(); ++j)
    if (call.param(j).defined()) check_values(call.op_name(), cell.params[j], call.param(j), arithmetic_of(call));
  TORCH_CHECK(false, call.op_name(), ": a parameter was changed during the call");
}

void check_lengths(const MultistepCall& call) {
  if (call.lengths.defined()) check_lengths(call, call.lengths, call.inputs[0].size(0));
}

void check_lengths(const MultistepCall& call, const at::Tensor& lengths, std::int64_t steps) {
  const at::Tensor all = lengths.contiguous();
  const auto check = [&](const auto* numbers) {
    for (std::int64_t i = 0; i < all.numel(); ++i)
      TORCH_CHECK_VALUE(0 <= numbers[i] && numbers[i] <= steps, call.op_name(), ": lengths must be in [0, ", steps,
                        "], the steps of ", call.cell->inputs[0], ", but one is ", numbers[i], ", of sample ", i);
  };
  if (all.scalar_type() == at::kLong)
    check(all.const_data_ptr<std::int64_t>());
  else
    check(all.const_data_ptr<std::int32_t>());
}

void check_dense(const MultistepCall& call) {
  bool dense = true;
  for_each_tensor(call, [&](const at::Tensor& t) { dense = dense && t.layout() == c10::kStrided && !t.is_nested(); });
  if (!dense) check_arguments(call);
}

template <class Int> Preparation<Int> prepare(const MultistepCall& call) {
  check_arguments(call);
  const c10::ScalarType type = call.inputs[0].scalar_type();
  Preparation<Int> prepared;
  prepared.first_input = with_dense_steps<Int>(call.inputs[0]);
  prepared.layout = layout_of<Int>(prepared.first_input);
  if (call.cell->draws && !order_of(prepared.layout)) {
    prepared.first_input = prepared.first_input.contiguous();
    prepared.layout = layout_of<Int>(prepared.first_input);
  }
  prepared.options = prepared.first_input.options();
  prepared.state_options = prepared.options.dtype(state_type(type));
  prepared.checkpoint_length = call.cell->is_integer ? 1 : call.cell->checkpoint_length(dtype_of(type));
  return prepared;
}

template <class Int>
MultistepResults allocate_forward(const MultistepCall& call, const Preparation<Int>& prepared, bool save) {
  const Cell& cell = *call.cell;
  const Layout<Int>& layout = prepared.layout;
  MultistepResults results;
  for (std::size_t k = 0; k < cell.outputs.size(); ++k)
    results.outputs.push_back(layout.empty_sequence(prepared.options));
  for (std::size_t s = 0; s < cell.states.size() && (call.store_states || call.last_states); ++s)
    results.states.push_back(call.store_states ? layout.empty_sequence(prepared.state_options)
                                               : layout.empty_step(prepared.state_options));
  if (save)
    results.checkpoints =
        layout.empty_checkpoints(layout.checkpoint_count(prepared.checkpoint_length),
                                 static_cast<std::int64_t>(cell.states.size()), prepared.state_options);
  if (save && call.bits != 0) results.packed = empty_packed(results.outputs[0], call.bits);
  return results;
}

template <class Int> void check_backward(const BackwardCall& call, const Preparation<Int>& prepared) {
  const Cell& cell = *call.cell;
  const at::Tensor& x = call.inputs[0];
  const Leader leader{cell.backward_op.c_str(), cell.inputs[0].c_str(), x};
  for (std::size_t k = 0; k < cell.outputs.size(); ++k)
    if (const at::Tensor& grad = call.grad_outputs[k]; grad.defined())
      check_gradient(leader, cell.outputs[k].empty() ? "grad_outputs" : "grad_", cell.outputs[k].c_str(), grad,
                     x.sym_sizes(), x.scalar_type());
  for (std::size_t s = 0; s < cell.states.size(); ++s)
    if (const at::Tensor& grad = call.grad_states[s]; grad.defined())
      check_gradient(leader, "grad_", cell.states[s].c_str(), grad, x.sym_sizes().slice(call.store_states ? 0 : 1),
                     state_type(x.scalar_type()));
  Sizes<c10::SymInt> shape{prepared.layout.checkpoint_count(prepared.checkpoint_length),
                           static_cast<std::int64_t>(cell.states.size())};
  shape.append(prepared.layout.sizes.begin(), prepared.layout.sizes.end());
  check_gradient(leader, "", "checkpoints", call.checkpoints, shape, state_type(x.scalar_type()));
  std::size_t argument = call.inputs.size();
  const auto check_given = [&](const at::Tensor& t, const std::string& name) {
    TORCH_CHECK_VALUE(t.defined() || !call.needs_grad[argument], leader.op, ": needs_grad requests the gradient of ",
                      name, ", which is not a tensor here");
    ++argument;
  };
  for (std::size_t s = 0; s < cell.states.size(); ++s) check_given(call.state(s), cell.states[s]);
  for (std::size_t j = 0; j < cell.params.size(); ++j) check_given(call.param(j), cell.params[j].name);
}

template <class Int> Gradients allocate_backward(const BackwardCall& call, const Preparation<Int>& prepared) {
  Gradients gradients;
  std::size_t next = 0;
  for (std::size_t i = 0; i < call.inputs.size(); ++i)
    gradients.inputs.push_back(call.needs_grad[next++] ? prepared.layout.empty_sequence(prepared.options)
                                                       : at::Tensor());
  for (std::size_t s = 0; s < call.cell->states.size(); ++s)
    gradients.states.push_back(call.needs_grad[next++] ? prepared.layout.empty_step(call.state(s).options())
                                                       : at::Tensor());
  gradients.params.resize(call.cell->params.size());
  return gradients;
}

bool wants_grad_param(const BackwardCall& call, std::size_t j) {
  return call.needs_grad[call.inputs.size() + call.cell->states.size() + j];
}

template <class Int> Gradients check_and_allocate(const BackwardCall& call, const Preparation<Int>& prepared) {
  check_backward(call, prepared);
  Gradients gradients = allocate_backward(call, prepared);
  for (std::size_t j = 0; j < call.cell->params.size(); ++j)
    if (wants_grad_param(call, j)) gradients.params[j] = prepared.layout.empty_step(prepared.state_options);
  return gradients;
}

Tensors reduce_and_list(const BackwardCall& call, const Gradients& gradients) {
  Tensors list;
  for (const Tensors* part : {&gradients.inputs, &gradients.states})
    for (const at::Tensor& grad : *part)
      if (grad.defined()) list.push_back(grad);
  for (std::size_t j = 0; j < call.cell->params.size(); ++j)
    if (gradients.params[j].defined()) list.push_back(sum_over_neurons(gradients.params[j], call.param(j)));
  return list;
}

LaunchStorage::LaunchStorage(const MultistepCall& call, const Prepared& prepared) : call_(call), prepared_(prepared) {
  const PlainLayout& layout = prepared.layout;
  inputs_.push_back({.data = prepared.first_input.const_data_ptr(), .time_stride = prepared.first_input.stride(0)});
  for (const at::Tensor& input : call.inputs.slice(1)) {
    inputs_.push_back(view_sequence(input, layout, copies_));
    // GPU kernels expand one element to a row only for upstream gradients.
    if (inputs_.back().neuron_stride == 0 && input.is_cuda()) {
      const at::Tensor whole = copies_.emplace_back(input.contiguous());
      inputs_.back() = view_sequence(whole, layout, copies_);
    }
  }
  initial_.resize(call.cell->states.size());
  for (std::size_t s = 0; s < initial_.size(); ++s)
    if (const at::Tensor& state = call.state(s); state.defined())
      initial_[s] = {.data = data_of_step(state, layout, copies_), .type = dtype_of(state.scalar_type())};
  for (std::size_t j = 0; j < call.cell->params.size(); ++j) params_.push_back(view_of(call, j, layout, copies_));
  if (call.lengths.defined()) lengths_ = view_lengths(call.lengths, layout, copies_);
  if (call.start.defined()) start_ = view_start(call.start, layout, copies_);
  if (call.cell->draws) draws_ = view_draws(call, layout);
}

void LaunchStorage::describe(Launch& launch) const {
  launch.cell = call_.cell;
  launch.form = call_.form;
  launch.surrogate_args = call_.surrogate_args;
  launch.type = dtype_of(prepared_.first_input.scalar_type());
  launch.steps = prepared_.layout.steps;
  launch.neurons = prepared_.layout.neurons;
  launch.checkpoint_length = prepared_.checkpoint_length;
  launch.store_states = call_.store_states;
  launch.inputs = inputs_;
  launch.initial = initial_;
  launch.params = params_;
  launch.lengths = lengths_;
  launch.start = start_;
  launch.draws = draws_;
}

SequenceView LaunchStorage::view_maybe(const at::Tensor& t, bool is_sequence) {
  if (!t.defined()) return {};
  return is_sequence ? view_sequence(t, prepared_.layout, copies_) : view_step(t, prepared_.layout, copies_);
}

LaunchStorage::Pointers LaunchStorage::writable(const Tensors& tensors) {
  Pointers pointers;
  for (const at::Tensor& t : tensors) pointers.push_back(t.defined() ? t.mutable_data_ptr() : nullptr);
  return pointers;
}

DescribedForward::DescribedForward(const MultistepCall& call, const Prepared& prepared, const MultistepResults& results)
    : LaunchStorage(call, prepared), outputs_(writable(results.outputs)), states_(writable(results.states)) {
  states_.resize(call.cell->states.size());  // null if the last states are not stored
  describe(launch);
  launch.outputs = outputs_;
  launch.states = states_;
  launch.scan = call.scan && !call.has_samples();
  if (results.checkpoints.defined() && results.checkpoints.numel() > 0)
    launch.checkpoints = results.checkpoints.mutable_data_ptr();
  // The loop does not write the part after the end of a sample, and a scan writes no bits.
  const bool is_in_loop = !call.has_samples() && !call.scan && PackedOutput::has_whole_bytes(launch.neurons, call.bits);
  if (results.packed.numbers.defined() && is_in_loop)
    launch.packed = {.bits = static_cast<std::uint8_t>(call.bits),
                     .numbers = results.packed.numbers.mutable_data_ptr<std::uint8_t>(),
                     .valid = static_cast<std::uint8_t*>(results.packed.valid.mutable_data_ptr())};
}

void DescribedForward::pack_rest(MultistepResults& results) const {
  if (results.packed.numbers.defined() && launch.packed.bits == 0)
    results.packed = call_pack(results.outputs[0], call_.bits);
}

DescribedBackward::DescribedBackward(const BackwardCall& call, const Prepared& prepared, const Gradients& gradients)
    : LaunchStorage(call, prepared),
      grad_inputs_(writable(gradients.inputs)),
      grad_initial_(writable(gradients.states)) {
  for (const at::Tensor& grad : call.grad_outputs) grad_outputs_.push_back(view_maybe(grad, /*is_sequence=*/true));
  for (const at::Tensor& grad : call.grad_states) grad_states_.push_back(view_maybe(grad, call.store_states));
  describe(launch);
  launch.grad_outputs = grad_outputs_;
  launch.grad_states = grad_states_;
  if (call.checkpoints.numel() > 0)
    launch.checkpoints = data_of_checkpoints(call.checkpoints, prepared.layout, copies_);
  for (const void* const grad : grad_inputs_) launch.any_grad_input |= grad != nullptr;
  for (std::size_t j = 0; j < call.cell->params.size(); ++j) launch.any_grad_param |= wants_grad_param(call, j);
  launch.grad_inputs = grad_inputs_;
  launch.grad_initial = grad_initial_;
  set_grad_params(gradients.params);
}

void DescribedBackward::set_grad_params(const Tensors& grad_params) {
  grad_params_.clear();
  for (const at::Tensor& grad : grad_params) grad_params_.push_back(grad.defined() ? grad.mutable_data_ptr() : nullptr);
  launch.grad_params = grad_params_;
}

MultistepResults forward_meta(const MultistepCall& call, bool save) {
  return allocate_forward(call, prepare<c10::SymInt>(call), save);
}

Tensors backward_meta(const BackwardCall& call) {
  return reduce_and_list(call, check_and_allocate(call, prepare<c10::SymInt>(call)));
}

#define SPIKEFORGE_INSTANTIATE(Int)                                                                \
  template Preparation<Int> prepare(const MultistepCall&);                                         \
  template MultistepResults allocate_forward(const MultistepCall&, const Preparation<Int>&, bool); \
  template void check_backward(const BackwardCall&, const Preparation<Int>&);                      \
  template Gradients allocate_backward(const BackwardCall&, const Preparation<Int>&);              \
  template Gradients check_and_allocate(const BackwardCall&, const Preparation<Int>&);
SPIKEFORGE_INSTANTIATE(std::int64_t)
SPIKEFORGE_INSTANTIATE(c10::SymInt)
#undef SPIKEFORGE_INSTANTIATE

}  // namespace spikeforge::ops
