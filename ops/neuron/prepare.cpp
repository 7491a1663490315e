#include <spikeforge/ops/neuron/prepare.h>
#include <spikeforge/runtime/schedule.h>

#include <ATen/ExpandUtils.h>

#include <string>
#include <string_view>

namespace spikeforge::ops {
namespace {

// Kernels count steps, and look a few ahead, in 32 bits.
constexpr std::int64_t most_steps = std::int64_t{1} << 30;

bool is_supported(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16 || type == c10::ScalarType::Float ||
         type == c10::ScalarType::Double;
}

c10::ScalarType state_type(c10::ScalarType x) { return scalar_type_of(compute_type(dtype_of(x))); }

void check_x(const char* op, const at::Tensor& x) {
  TORCH_CHECK_TYPE(is_supported(x.scalar_type()), op, ": x must be float16, bfloat16, float32 or float64, but is ",
                   x.scalar_type(), "; pass x.to(torch.float32)");
  TORCH_CHECK_VALUE(x.dim() >= 1, op, ": x must have shape [T, *shape], time first, but is 0-dimensional");
  TORCH_CHECK_VALUE(x.sym_size(0) <= most_steps, op, ": x has ", x.sym_size(0), " steps; at most 2^30 are supported");
}

void check_type(const char* op, const char* name, const at::Tensor& t, const at::Tensor& x) {
  const c10::ScalarType state = state_type(x.scalar_type());
  TORCH_CHECK_TYPE(t.layout() == c10::kStrided, op, ": ", name, " must be a dense tensor, but its layout is ",
                   t.layout());
  TORCH_CHECK_TYPE(t.scalar_type() == x.scalar_type() || t.scalar_type() == state, op, ": ", name, " must be ",
                   x.scalar_type(), state == x.scalar_type() ? std::string() : std::string(" or ") + toString(state),
                   " beside a ", x.scalar_type(), " x, but is ", t.scalar_type());
}

void check_device(const char* op, const char* name, const at::Tensor& t, const at::Tensor& x) {
  TORCH_CHECK_VALUE(t.device() == x.device(), op, ": ", name, " must be on ", x.device(),
                    ", the device of x, but is on ", t.device());
}

void check_state(const char* op, const char* name, const at::Tensor& state, const at::Tensor& x) {
  const c10::SymIntArrayRef shape = x.sym_sizes().slice(1);
  TORCH_CHECK_VALUE(state.sym_sizes() == shape, op, ": ", name, " must have shape ", shape,
                    ", that of x without its time dimension, but has ", state.sym_sizes());
  check_type(op, name, state, x);
  check_device(op, name, state, x);
}

bool is_host_scalar(const at::Tensor& param) { return param.dim() == 0 && param.is_cpu(); }

void check_param(const char* op, const char* name, const at::Tensor& param, const at::Tensor& x) {
  const c10::SymIntArrayRef shape = x.sym_sizes().slice(1);
  bool broadcasts = param.dim() <= static_cast<std::int64_t>(shape.size());
  for (std::int64_t d = 1; broadcasts && d <= param.dim(); ++d) {
    const c10::SymInt size = param.sym_size(param.dim() - d);
    broadcasts = size == 1 || size == shape[shape.size() - d];
  }
  TORCH_CHECK_VALUE(broadcasts, op, ": ", name, " must broadcast against ", shape,
                    ", the shape of x without its time dimension, but has shape ", param.sym_sizes());
  check_type(op, name, param, x);
  if (!is_host_scalar(param)) check_device(op, name, param, x);
}

at::Tensor param_of(const NeuronArguments& args, int j) {
  return tensor_of(args.params.get(static_cast<std::size_t>(j)));
}

void check_arguments(const NeuronArguments& args) {
  const NeuronDescription& neuron = describe(args.kind);
  check_x(neuron.name, args.x);
  for (int s = 0; s < neuron.n_states(); ++s)
    if (const at::Tensor state = tensor_of(args.states[s]); state.defined())
      check_state(neuron.name, neuron.states[s], state, args.x);
  const auto n_params = static_cast<std::size_t>(neuron.n_params());
  TORCH_CHECK_VALUE(args.params.size() == n_params && args.numbers.size() == n_params, neuron.name,
                    ": params and numbers must have ", n_params, " entries, but have ", args.params.size(), " and ",
                    args.numbers.size());
  for (int j = 0; j < neuron.n_params(); ++j)
    if (const at::Tensor param = param_of(args, j); param.defined())
      check_param(neuron.name, neuron.params[j].name, param, args.x);
}

ParamView view_of(const NeuronArguments& args, int j, const Prepared& prepared, Copies& copies) {
  const at::Tensor param = param_of(args, j);
  if (!param.defined()) return {.number = args.numbers[static_cast<std::size_t>(j)]};
  // Reading a number that is in the host's memory anyway waits for no device, and lets all neurons share one cell.
  if (param.is_cpu() && param.numel() == 1) return {.number = param.item<double>()};
  return view_param(param.is_neg() ? copies.emplace_back(param.resolve_neg()) : param, prepared.layout, copies);
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

std::int64_t at_least_one(std::int64_t value) { return std::max<std::int64_t>(value, 1); }
c10::SymInt at_least_one(const c10::SymInt& value) { return value.max(1); }

template <class Int>
Int checkpoint_count(const Preparation<Int>& prepared) {
  return (at_least_one(prepared.layout.steps) - 1) / prepared.checkpoint_length;
}

void* writable(const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

// `prefix` and `name` together are the argument's: grad_ and v.
void check_gradient(const char* op, const char* prefix, const char* name, const at::Tensor& grad, const at::Tensor& x,
                    c10::SymIntArrayRef shape, c10::ScalarType type) {
  TORCH_CHECK_VALUE(grad.sym_sizes() == shape, op, "_backward: ", prefix, name, " must have shape ", shape,
                    ", but has ", grad.sym_sizes());
  TORCH_CHECK_TYPE(grad.scalar_type() == type, op, "_backward: ", prefix, name, " must be ", type, ", but is ",
                   grad.scalar_type());
  TORCH_CHECK_VALUE(grad.device() == x.device(), op, "_backward: ", prefix, name, " must be on ", x.device(),
                    ", the device of x, but is on ", grad.device());
}

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
  const at::Tensor& x = args.x;
  if (const at::Tensor grad = tensor_of(args.grad_spikes); grad.defined())
    check_gradient(neuron.name, "grad_", "spikes", grad, x, x.sym_sizes(), x.scalar_type());
  for (int s = 0; s < neuron.n_states(); ++s)
    if (const at::Tensor grad = tensor_of(args.grad_states[s]); grad.defined())
      check_gradient(neuron.name, "grad_", neuron.states[s], grad, x, x.sym_sizes().slice(args.store_v ? 0 : 1),
                     state_type(x.scalar_type()));
  Sizes<c10::SymInt> shape{checkpoint_count(prepared), neuron.n_states()};
  shape.append(prepared.layout.sizes.begin(), prepared.layout.sizes.end());
  check_gradient(neuron.name, "", "checkpoints", args.checkpoints, x, shape, state_type(x.scalar_type()));
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
    list.push_back(at::sum_to(results.grad_params[j], param.sym_sizes()).to(param.options()));
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
