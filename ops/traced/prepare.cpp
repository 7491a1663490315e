#include <spikeforge/graph/errors.h>
#include <spikeforge/ops/neuron/checks.h>
#include <spikeforge/ops/traced/prepare.h>

#include <algorithm>
#include <string>

namespace spikeforge::ops {
namespace {

using graph::Cell;
using graph::State;

const char* name_of(const std::string& name) { return name.c_str(); }
const char* name_of(const State& state) { return state.name.c_str(); }

template <class Names>
std::string listed(const Names& names) {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + std::string(name_of(name));
  return list.empty() ? list : " (" + list + ")";
}

template <class Names>
void check_count(const std::string& op, const char* what, const Names& names, std::size_t given) {
  TORCH_CHECK_VALUE(given == names.size(), op, ": ", what, " must have ", names.size(),
                    names.size() == 1 ? " tensor" : " tensors", listed(names), ", but has ", given);
}

void check_defined(const std::string& op, const char* name, const at::Tensor& t) {
  TORCH_CHECK_VALUE(t.defined(), op, ": ", name, " is an undefined tensor");
}

void check_input(const Leader& leader, const char* name, const at::Tensor& input) {
  const at::Tensor& first = leader.tensor;
  TORCH_CHECK_VALUE(input.sym_sizes() == first.sym_sizes(), leader.op, ": ", name, " must have shape ",
                    first.sym_sizes(), ", that of ", leader.name, ", but has ", input.sym_sizes(),
                    "; inputs do not broadcast: pass ", name, ".expand_as(", leader.name, ")");
  TORCH_CHECK_TYPE(input.layout() == c10::kStrided, leader.op, ": ", name,
                   " must be a dense tensor, but its layout is ", input.layout());
  TORCH_CHECK_TYPE(input.scalar_type() == first.scalar_type(), leader.op, ": ", name, " must be ", first.scalar_type(),
                   ", the type of ", leader.name, ", but is ", input.scalar_type());
  check_device(leader, name, input);
}

std::string op_name(const char* op, const Cell& cell) { return std::string(op) + "(" + cell.name() + ")"; }

void check_arguments(const TracedArguments& args, const Cell& cell) {
  const graph::Signature& named = cell.signature();
  const std::string op = op_name("run", cell);
  check_count(op, "inputs", named.inputs, args.inputs.size());
  for (std::size_t i = 0; i < args.inputs.size(); ++i) check_defined(op, named.inputs[i].c_str(), args.inputs[i]);
  const Leader leader{op.c_str(), named.inputs[0].c_str(), args.inputs[0]};
  TORCH_CHECK_TYPE(leader.tensor.layout() == c10::kStrided, op, ": ", leader.name,
                   " must be a dense tensor, but its layout is ", leader.tensor.layout(), "; pass ", leader.name,
                   ".to_dense()");
  check_leader(leader);
  for (std::size_t i = 1; i < args.inputs.size(); ++i) check_input(leader, named.inputs[i].c_str(), args.inputs[i]);
  if (!args.states.empty()) check_count(op, "states", named.states, args.states.size());
  for (std::size_t s = 0; s < args.states.size(); ++s) {
    check_defined(op, named.states[s].name.c_str(), args.states[s]);
    check_state(leader, named.states[s].name.c_str(), args.states[s]);
  }
  check_count(op, "params", named.params, args.params.size());
  for (std::size_t j = 0; j < args.params.size(); ++j) {
    check_defined(op, named.params[j].c_str(), args.params[j]);
    check_param(leader, named.params[j].c_str(), args.params[j]);
  }
}

bool is_given(const std::optional<at::Tensor>& t) { return t.has_value() && t->defined(); }

}  // namespace

const TracedCell& cell_of(std::string_view text, const char* caller) {
  try {
    return intern(text);
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, caller, ": the neuron's text is not legal: ", error.what());
  }
}

void check_strided(const TracedArguments& args) {
  for (const at::TensorList list : {args.inputs, args.states, args.params})
    for (const at::Tensor& t : list)
      if (t.defined() && t.layout() != c10::kStrided) return check_arguments(args, cell_of(args.neuron).cell);
}

template <class Int>
TracedPreparation<Int> prepare(const TracedArguments& args) {
  TracedPreparation<Int> prepared;
  prepared.cell = &cell_of(args.neuron);
  check_arguments(args, prepared.cell->cell);
  const c10::ScalarType type = args.inputs[0].scalar_type();
  prepared.first_input = with_dense_steps<Int>(args.inputs[0]);
  prepared.layout = layout_of<Int>(prepared.first_input);
  prepared.options = prepared.first_input.options();
  prepared.state_options = prepared.options.dtype(state_type(type));
  prepared.checkpoint_length = prepared.cell->checkpoint_length(dtype_of(type));
  return prepared;
}

template <class Int>
TracedResults allocate_forward(const TracedArguments& args, const TracedPreparation<Int>& prepared, bool save) {
  const Cell& cell = prepared.cell->cell;
  const Layout<Int>& layout = prepared.layout;
  TracedResults results;
  for (std::size_t k = 0; k < cell.output_count(); ++k)
    results.outputs.push_back(layout.empty_sequence(prepared.options));
  for (std::size_t s = 0; s < cell.state_count(); ++s)
    results.states.push_back(args.store_states ? layout.empty_sequence(prepared.state_options)
                                               : layout.empty_step(prepared.state_options));
  if (save)
    results.checkpoints.push_back(layout.empty_checkpoints(layout.checkpoint_count(prepared.checkpoint_length),
                                                           static_cast<std::int64_t>(cell.state_count()),
                                                           prepared.state_options));
  return results;
}

template <class Int>
void check_backward(const TracedBackwardArguments& args, const TracedPreparation<Int>& prepared) {
  const Cell& cell = prepared.cell->cell;
  const graph::Signature& named = cell.signature();
  const std::string op = op_name("run_backward", cell);
  const at::Tensor& x = args.inputs[0];
  const Leader leader{op.c_str(), named.inputs[0].c_str(), x};
  TORCH_CHECK_VALUE(args.grad_outputs.size() == cell.output_count() && args.grad_states.size() == cell.state_count(),
                    op, ": grad_outputs and grad_states must have ", cell.output_count(), " and ", cell.state_count(),
                    " entries, but have ", args.grad_outputs.size(), " and ", args.grad_states.size());
  for (std::size_t k = 0; k < cell.output_count(); ++k)
    if (const std::optional<at::Tensor> grad = args.grad_outputs.get(k); is_given(grad))
      check_gradient(leader, "grad_outputs", "", *grad, x.sym_sizes(), x.scalar_type());
  for (std::size_t s = 0; s < cell.state_count(); ++s)
    if (const std::optional<at::Tensor> grad = args.grad_states.get(s); is_given(grad))
      check_gradient(leader, "grad_", named.states[s].name.c_str(), *grad,
                     x.sym_sizes().slice(args.store_states ? 0 : 1), state_type(x.scalar_type()));
  TORCH_CHECK_VALUE(args.checkpoints.size() == 1, op, ": checkpoints must have 1 tensor, but has ",
                    args.checkpoints.size());
  Sizes<c10::SymInt> shape{prepared.layout.checkpoint_count(prepared.checkpoint_length),
                           static_cast<std::int64_t>(cell.state_count())};
  shape.append(prepared.layout.sizes.begin(), prepared.layout.sizes.end());
  check_gradient(leader, "", "checkpoints", args.checkpoints[0], shape, state_type(x.scalar_type()));
  const std::size_t n_gradients = args.inputs.size() + args.states.size() + args.params.size();
  TORCH_CHECK_VALUE(args.needs_grad.size() == n_gradients, op, ": needs_grad must have ", n_gradients,
                    " entries, one for each tensor of inputs, states and params, but has ", args.needs_grad.size());
}

template <class Int>
TracedGradients allocate_backward(const TracedBackwardArguments& args, const TracedPreparation<Int>& prepared) {
  TracedGradients gradients;
  std::size_t next = 0;
  const auto add = [&](Tensors& list, auto&& make) {
    list.push_back(args.needs_grad.get(next++) ? make() : at::Tensor());
  };
  for (std::size_t i = 0; i < args.inputs.size(); ++i)
    add(gradients.inputs, [&] { return prepared.layout.empty_sequence(prepared.options); });
  for (const at::Tensor& state : args.states)
    add(gradients.states, [&] { return prepared.layout.empty_step(state.options()); });
  for (std::size_t j = 0; j < args.params.size(); ++j)
    add(gradients.params, [&] { return prepared.layout.empty_step(prepared.state_options); });
  return gradients;
}

Tensors reduce_and_list(const TracedBackwardArguments& args, const TracedGradients& gradients) {
  Tensors list;
  for (const Tensors* part : {&gradients.inputs, &gradients.states})
    std::copy_if(part->begin(), part->end(), std::back_inserter(list), [](const at::Tensor& t) { return t.defined(); });
  for (std::size_t j = 0; j < args.params.size(); ++j)
    if (gradients.params[j].defined()) list.push_back(sum_over_neurons(gradients.params[j], args.params[j]));
  return list;
}

TracedCall::TracedCall(const TracedArguments& args, const TracedPreparation<std::int64_t>& prepared)
    : prepared_(prepared), store_states_(args.store_states) {
  const PlainLayout& layout = prepared.layout;
  inputs_.push_back({.data = prepared.first_input.const_data_ptr(), .time_stride = prepared.first_input.stride(0)});
  for (const at::Tensor& input : args.inputs.slice(1)) {
    inputs_.push_back(view_sequence(input, layout, copies_));
    // GPU kernels spread one element over a row for upstream gradients alone.
    if (inputs_.back().neuron_stride == 0 && input.is_cuda()) {
      const at::Tensor whole = copies_.emplace_back(input.contiguous());
      inputs_.back() = view_sequence(whole, layout, copies_);
    }
  }
  initial_.resize(prepared.cell->cell.state_count());
  for (std::size_t s = 0; s < args.states.size(); ++s)
    initial_[s] = {.data = data_of_step(args.states[s], layout, copies_),
                   .type = dtype_of(args.states[s].scalar_type())};
  for (const at::Tensor& param : args.params) params_.push_back(view_param(param, layout, copies_));
}

void TracedCall::describe(TracedLaunch& launch) const {
  launch.cell = prepared_.cell;
  launch.type = dtype_of(prepared_.first_input.scalar_type());
  launch.steps = prepared_.layout.steps;
  launch.neurons = prepared_.layout.neurons;
  launch.checkpoint_length = prepared_.checkpoint_length;
  launch.store_states = store_states_;
  launch.inputs = inputs_;
  launch.initial = initial_;
  launch.params = params_;
}

SequenceView TracedCall::view_maybe(const std::optional<at::Tensor>& t, bool is_sequence) {
  if (!is_given(t)) return {};
  return is_sequence ? view_sequence(*t, prepared_.layout, copies_) : view_step(*t, prepared_.layout, copies_);
}

std::vector<void*> TracedCall::writable(const Tensors& tensors) {
  std::vector<void*> pointers;
  for (const at::Tensor& t : tensors) pointers.push_back(t.defined() ? t.mutable_data_ptr() : nullptr);
  return pointers;
}

TracedForwardCall::TracedForwardCall(const TracedArguments& args, const TracedPreparation<std::int64_t>& prepared,
                                     const TracedResults& results)
    : TracedCall(args, prepared), outputs_(writable(results.outputs)), states_(writable(results.states)) {
  describe(launch);
  launch.outputs = outputs_;
  launch.states = states_;
  if (!results.checkpoints.empty() && results.checkpoints[0].numel() > 0)
    launch.checkpoints = results.checkpoints[0].mutable_data_ptr();
}

TracedBackwardCall::TracedBackwardCall(const TracedBackwardArguments& args,
                                       const TracedPreparation<std::int64_t>& prepared,
                                       const TracedGradients& gradients)
    : TracedCall(args, prepared),
      grad_inputs_(writable(gradients.inputs)),
      grad_initial_(writable(gradients.states)),
      grad_params_(writable(gradients.params)) {
  grad_initial_.resize(prepared.cell->cell.state_count());  // null where the neuron starts by itself
  for (std::size_t k = 0; k < args.grad_outputs.size(); ++k)
    grad_outputs_.push_back(view_maybe(args.grad_outputs.get(k), /*is_sequence=*/true));
  for (std::size_t s = 0; s < args.grad_states.size(); ++s)
    grad_states_.push_back(view_maybe(args.grad_states.get(s), store_states_));
  describe(launch);
  launch.grad_outputs = grad_outputs_;
  launch.grad_states = grad_states_;
  if (args.checkpoints[0].numel() > 0)
    launch.checkpoints = data_of_checkpoints(args.checkpoints[0], prepared.layout, copies_);
  launch.grad_inputs = grad_inputs_;
  launch.grad_initial = grad_initial_;
  launch.grad_params = grad_params_;
}

#define SPIKEFORGE_INSTANTIATE(Int)                                                                     \
  template TracedPreparation<Int> prepare(const TracedArguments&);                                      \
  template TracedResults allocate_forward(const TracedArguments&, const TracedPreparation<Int>&, bool); \
  template void check_backward(const TracedBackwardArguments&, const TracedPreparation<Int>&);          \
  template TracedGradients allocate_backward(const TracedBackwardArguments&, const TracedPreparation<Int>&);
SPIKEFORGE_INSTANTIATE(std::int64_t)
SPIKEFORGE_INSTANTIATE(c10::SymInt)
#undef SPIKEFORGE_INSTANTIATE

}  // namespace spikeforge::ops
