#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/public_call.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

namespace spikeforge::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<Tensor> maybe(const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; }

// x, the states and the parameters, undefined where a call has none.
variable_list all_tensors(const NeuronArguments& args) {
  variable_list tensors{args.x};
  for (int s = 0; s < describe(args.kind).n_states(); ++s) tensors.push_back(tensor_of(args.states[s]));
  for (const std::optional<Tensor> param : args.params) tensors.push_back(tensor_of(param));
  return tensors;
}

void save_options(AutogradContext& ctx, const NeuronArguments& args) {
  ctx.saved_data["kind"] = static_cast<std::int64_t>(args.kind);
  ctx.saved_data["numbers"] = args.numbers.vec();
  ctx.saved_data["options"] = std::vector<bool>{args.options.hard_reset, args.options.detach_reset,
                                                args.options.spiking, args.options.decay_input, args.store_v};
  ctx.saved_data["surrogate"] = std::string(args.surrogate);
  ctx.saved_data["surrogate_args"] = args.surrogate_args.vec();
}

class NeuronFunction : public torch::autograd::Function<NeuronFunction> {
 public:
  static constexpr bool is_traceable = true;

  // `differentiable` names the tensors of `args` to autograd.
  static variable_list forward(AutogradContext* ctx, at::TensorList /*differentiable*/, const NeuronArguments& args,
                               bool save) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const ForwardResults results = call_forward(args, save);
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({results.checkpoints});
    if (save) {
      variable_list saved = all_tensors(args);
      saved.push_back(results.checkpoints);
      ctx->save_for_backward(std::move(saved));
      save_options(*ctx, args);
    }
    variable_list outputs{results.spikes};
    for (int s = 0; s < describe(args.kind).n_states(); ++s) outputs.push_back(results.states[s]);
    outputs.push_back(results.checkpoints);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto kind = static_cast<NeuronKind>(ctx->saved_data["kind"].toInt());
    const std::vector<double> numbers = ctx->saved_data["numbers"].toDoubleVector();
    const c10::List<bool> options = ctx->saved_data["options"].toBoolList();
    const std::string surrogate = ctx->saved_data["surrogate"].toStringRef();
    const std::vector<double> surrogate_args = ctx->saved_data["surrogate_args"].toDoubleVector();
    const auto n_states = static_cast<std::size_t>(describe(kind).n_states());

    BackwardArguments args;
    args.kind = kind;
    args.x = saved[0];
    for (std::size_t s = 0; s < n_states; ++s) args.states[s] = maybe(saved[1 + s]);
    args.params = OptionalTensorList();
    for (std::size_t j = 1 + n_states; j + 1 < saved.size(); ++j) args.params.push_back(maybe(saved[j]));
    args.checkpoints = saved.back();
    args.numbers = numbers;
    args.options = {options[0], options[1], options[2], options[3]};
    args.store_v = options[4];
    args.surrogate = surrogate;
    args.surrogate_args = surrogate_args;
    args.grad_spikes = maybe(grads[0]);
    for (std::size_t s = 0; s < n_states; ++s) args.grad_states[s] = maybe(grads[1 + s]);

    // Autograd counts the defined tensors alone.
    std::size_t input = 0;
    for (std::size_t i = 0; i + 1 < saved.size(); ++i)
      args.needs_grad.push_back(saved[i].defined() && ctx->needs_input_grad(input++));

    const std::vector<Tensor> results = call_backward(args);
    auto next = results.begin();
    variable_list grad_inputs;
    for (std::size_t i = 0; i + 1 < saved.size(); ++i)
      if (saved[i].defined()) grad_inputs.push_back(args.needs_grad.get(i) ? *next++ : Tensor());
    grad_inputs.resize(grad_inputs.size() + 2);  // for `args` and `save`
    return grad_inputs;
  }
};

// Always through Function::apply: an early exit where nothing requires grad would give silent zeros under forward-mode
// AD, which apply refuses in words.
ForwardResults run_autograd(const NeuronArguments& args) {
  variable_list differentiable = all_tensors(args);
  std::erase_if(differentiable, [](const Tensor& t) { return !t.defined(); });
  const bool save = at::GradMode::is_enabled() && std::any_of(differentiable.begin(), differentiable.end(),
                                                              [](const Tensor& t) { return t.requires_grad(); });
  const variable_list outputs = NeuronFunction::apply(at::TensorList(differentiable), args, save);
  ForwardResults results{.spikes = outputs[0], .states = {outputs[1]}, .checkpoints = outputs.back()};
  if (outputs.size() == 4) results.states[1] = outputs[2];
  return results;
}

// A second derivative is refused in words.
void refuse_derivatives(torch::Library& library) {
#define SPIKEFORGE_NEURON(name, Struct, header)                                      \
  library.impl(#name "_forward", torch::autograd::autogradNotImplementedFallback()); \
  library.impl(#name "_backward", torch::autograd::autogradNotImplementedFallback());
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
}

TORCH_LIBRARY_IMPL(spikeforge, Autograd, library) {
  register_public<run_autograd>(library);
  refuse_derivatives(library);
}

}  // namespace
}  // namespace spikeforge::ops
