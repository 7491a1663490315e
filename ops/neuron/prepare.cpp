#include <spikeforge/ops/neuron/checks.h>
#include <spikeforge/ops/neuron/prepare.h>
#include <spikeforge/runtime/schedule.h>

#include <string>
#include <string_view>

namespace spikeforge::ops {
namespace {

at::Tensor param_of(const NeuronArguments& args, int j) {
  return tensor_of(args.params.get(static_cast<std::size_t>(j)));
}

void check_arguments(const NeuronArguments& args) {
  const NeuronDescription& neuron = describe(args.kind);
  const Leader x{neuron.name, "x", args.x};
  check_leader(x);
  for (int s = 0; s < neuron.n_states(); ++s)
    if (const at::Tensor state = tensor_of(args.states[s]); state.defined()) check_state(x, neuron.states[s], state);
  const auto n_params = static_cast<std::size_t>(neuron.n_params());
  TORCH_CHECK_VALUE(args.params.size() == n_params && args.numbers.size() == n_params, neuron.name,
                    ": params and numbers must have ", n_params, " entries, but have ", args.params.size(), " and ",
                    args.numbers.size());
  for (int j = 0; j < neuron.n_params(); ++j)
    if (const at::Tensor param = param_of(args, j); param.defined()) check_param(x, neuron.params[j].name, param);
}

ParamView view_of(const NeuronArguments& args, int j, const Prepared& prepared, Copies& copies) {
  const at::Tensor param = param_of(args, j);
  if (!param.defined()) return {.number = args.numbers[static_cast<std::size_t>(j)]};
  return view_param(param, prepared.layout, copies);
}

void describe_launch(MultistepLaunch& launch, const NeuronArguments& args, const Prepared& prepared, Copies& copies) {
  const NeuronDescription& neuron = describe(args.kind);
  launch.neuron = args.kind;
  launch.n_states = neuron.n_states();
  launch.n_params = neuron.n_params();
  launch.options = args.options;
  launch.surrogate = prepared.surrogate.kind;
  launch.surrogate_args = prepared.surrogate.args;
  launch.type = dtype_of(prepared.x.scalar_type());
  launch.steps = prepared.layout.steps;
  launch.neurons = prepared.layout.neurons;
  launch.checkpoint_length = prepared.checkpoint_length;
  launch.store_states = args.store_v;
  launch.x = {.data = prepared.x.const_data_ptr(), .time_stride = prepared.x.stride(0)};
  for (int s = 0; s < launch.n_states; ++s) {
    const at::Tensor state = tensor_of(args.states[s]);
    if (!state.defined()) continue;
    launch.initial[s] = {.data = data_of_step(state, prepared.layout, copies), .type = dtype_of(state.scalar_type())};
  }
  for (int j = 0; j < launch.n_params; ++j) launch.params[j] = view_of(args, j, prepared, copies);
}

template <class Int>
Int checkpoint_count(const Preparation<Int>& prepared) {
  return prepared.layout.checkpoint_count(prepared.checkpoint_length);
}

void* writable(const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

}  // namespace

template <class Int>
Preparation<Int> prepare(const NeuronArguments& args) {
  check_arguments(args);
  const NeuronDescription& neuron = describe(args.kind);
  Preparation<Int> prepared;
  prepared.surrogate = parse_surrogate(neuron.name, args.surrogate, args.surrogate_args);
  prepared.x = with_dense_steps<Int>(args.x);
  prepared.layout = layout_of<Int>(prepared.x);
  prepared.options = prepared.x.options();
  prepared.state_options = prepared.options.dtype(state_type(args.x.scalar_type()));
  prepared.checkpoint_length = runtime::checkpoint_length(args.kind, dtype_of(args.x.scalar_type()));
  return prepared;
}

template <class Int>
ForwardResults allocate_forward(const NeuronArguments& args, const Preparation<Int>& prepared, bool save) {
  const int n_states = describe(args.kind).n_states();
  ForwardResults results;
  results.spikes = prepared.layout.empty_sequence(prepared.options);
  for (int s = 0; s < n_states; ++s)
    results.states[s] = args.store_v ? prepared.layout.empty_sequence(prepared.state_options)
                                     : prepared.layout.empty_step(prepared.state_options);
  results.checkpoints =
      save ? prepared.layout.empty_checkpoints(checkpoint_count(prepared), n_states, prepared.state_options)
           : Layout<Int>::no_checkpoints(prepared.state_options);
  return results;
}

ForwardLaunch forward_launch(const NeuronArguments& args, const Prepared& prepared, const ForwardResults& results,
                             Copies& copies) {
  ForwardLaunch launch;
  describe_launch(launch, args, prepared, copies);
  launch.spikes = writable(results.spikes);
  for (int s = 0; s < launch.n_states; ++s) launch.states[s] = writable(results.states[s]);
  launch.checkpoints = results.checkpoints.numel() > 0 ? writable(results.checkpoints) : nullptr;
  return launch;
}

template <class Int>
void check_backward(const BackwardArguments& args, const Preparation<Int>& prepared) {
  const NeuronDescription& neuron = describe(args.kind);
  const at::Tensor& tensor = args.x;
  const std::string op = std::string(neuron.name) + "_backward";
  const Leader x{op.c_str(), "x", tensor};
  if (const at::Tensor grad = tensor_of(args.grad_spikes); grad.defined())
    check_gradient(x, "grad_", "spikes", grad, tensor.sym_sizes(), tensor.scalar_type());
  for (int s = 0; s < neuron.n_states(); ++s)
    if (const at::Tensor grad = tensor_of(args.grad_states[s]); grad.defined())
      check_gradient(x, "grad_", neuron.states[s], grad, tensor.sym_sizes().slice(args.store_v ? 0 : 1),
                     state_type(tensor.scalar_type()));
  Sizes<c10::SymInt> shape{checkpoint_count(prepared), neuron.n_states()};
  shape.append(prepared.layout.sizes.begin(), prepared.layout.sizes.end());
  check_gradient(x, "", "checkpoints", args.checkpoints, shape, state_type(tensor.scalar_type()));
  const std::size_t n_gradients = 1 + neuron.states.size() + neuron.params.size();
  TORCH_CHECK_VALUE(args.needs_grad.size() == n_gradients, neuron.name, "_backward: needs_grad must have ", n_gradients,
                    " entries, but has ", args.needs_grad.size());
  for (std::size_t i = 1; i < n_gradients; ++i) {
    const bool is_state = i <= neuron.states.size();
    const std::size_t j = i - 1 - neuron.states.size();
    const bool given =
        is_state ? tensor_of(args.states[i - 1]).defined() : param_of(args, static_cast<int>(j)).defined();
    TORCH_CHECK_VALUE(given || !args.needs_grad.get(i), neuron.name, "_backward: needs_grad asks for the gradient of ",
                      is_state ? neuron.states[i - 1] : neuron.params[j].name, ", which is not a tensor here");
  }
}

template <class Int>
BackwardResults allocate_backward(const BackwardArguments& args, const Preparation<Int>& prepared) {
  const NeuronDescription& neuron = describe(args.kind);
  BackwardResults results;
  std::size_t next = 0;
  if (args.needs_grad.get(next++)) results.grad_x = prepared.layout.empty_sequence(prepared.options);
  for (int s = 0; s < neuron.n_states(); ++s)
    if (args.needs_grad.get(next++)) results.grad_states[s] = prepared.layout.empty_step(args.states[s]->options());
  return results;
}

bool wants_grad_param(const BackwardArguments& args, int j) {
  return args.needs_grad.get(1 + describe(args.kind).states.size() + static_cast<std::size_t>(j));
}

template <class Int>
void allocate_grad_params(const BackwardArguments& args, const Preparation<Int>& prepared, BackwardResults& results) {
  for (int j = 0; j < describe(args.kind).n_params(); ++j)
    if (wants_grad_param(args, j)) results.grad_params[j] = prepared.layout.empty_step(prepared.state_options);
}

BackwardLaunch backward_launch(const BackwardArguments& args, const Prepared& prepared, const BackwardResults& results,
                               Copies& copies) {
  BackwardLaunch launch;
  describe_launch(launch, args, prepared, copies);
  if (const at::Tensor grad = tensor_of(args.grad_spikes); grad.defined())
    launch.grad_spikes = view_sequence(grad, prepared.layout, copies);
  for (int s = 0; s < launch.n_states; ++s)
    if (const at::Tensor grad = tensor_of(args.grad_states[s]); grad.defined())
      launch.grad_states[s] =
          args.store_v ? view_sequence(grad, prepared.layout, copies) : view_step(grad, prepared.layout, copies);
  launch.checkpoints = data_of_checkpoints(args.checkpoints, prepared.layout, copies);
  launch.grad_x = writable(results.grad_x);
  for (int s = 0; s < launch.n_states; ++s) launch.grad_initial[s] = writable(results.grad_states[s]);
  for (int j = 0; j < launch.n_params; ++j) {
    launch.any_grad_param |= wants_grad_param(args, j);
    launch.grad_params[j] = writable(results.grad_params[j]);
  }
  return launch;
}

std::vector<at::Tensor> reduce_and_list(const BackwardArguments& args, const BackwardResults& results) {
  std::vector<at::Tensor> list;
  if (results.grad_x.defined()) list.push_back(results.grad_x);
  for (const at::Tensor& grad : results.grad_states)
    if (grad.defined()) list.push_back(grad);
  for (int j = 0; j < describe(args.kind).n_params(); ++j) {
    if (!results.grad_params[j].defined()) continue;
    const at::Tensor param = param_of(args, j);
    list.push_back(sum_over_neurons(results.grad_params[j], param));
  }
  return list;
}

#define SPIKEFORGE_INSTANTIATE(Int)                                                                \
  template Preparation<Int> prepare(const NeuronArguments&);                                       \
  template ForwardResults allocate_forward(const NeuronArguments&, const Preparation<Int>&, bool); \
  template void check_backward(const BackwardArguments&, const Preparation<Int>&);                 \
  template BackwardResults allocate_backward(const BackwardArguments&, const Preparation<Int>&);   \
  template void allocate_grad_params(const BackwardArguments&, const Preparation<Int>&, BackwardResults&);
SPIKEFORGE_INSTANTIATE(std::int64_t)
SPIKEFORGE_INSTANTIATE(c10::SymInt)
#undef SPIKEFORGE_INSTANTIATE

}  // namespace spikeforge::ops
