#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/public_call.h>

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace spikeforge::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<Tensor> maybe(const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; }

// Calls `body` with every tensor of a call, in the order of the arguments, and with what stands where it has none.
template <class Body>
void for_each_argument(const NeuronArguments& args, Body&& body) {
  body(args.x);
  for (int s = 0; s < describe(args.kind).n_states(); ++s) body(tensor_of(args.states[s]));
  for (const std::optional<Tensor> param : args.params) body(tensor_of(param));
}

template <class Predicate>
bool any_tensor(const NeuronArguments& args, Predicate&& is) {
  bool found = false;
  for_each_argument(args, [&](const Tensor& t) { found = found || (t.defined() && is(t)); });
  return found;
}

bool requires_grad(const Tensor& t) { return t.requires_grad(); }
bool has_tangent(const Tensor& t) { return t._fw_grad(/*level=*/0).defined(); }

// All of a call but its tensors, as the one list of numbers in which autograd keeps it for the backward pass.
class SavedCall {
 public:
  static c10::List<double> pack(const NeuronArguments& args) {
    const SurrogateKind surrogate = parse_surrogate("", args.surrogate, args.surrogate_args).kind;
    c10::List<double> list;
    list.reserve(9 + args.surrogate_args.size() + args.numbers.size());
    list.push_back(static_cast<double>(args.kind));
    list.push_back(args.options.hard_reset);
    list.push_back(args.options.detach_reset);
    list.push_back(args.options.spiking);
    list.push_back(args.options.decay_input);
    list.push_back(args.store_v);
    list.push_back(static_cast<double>(given_arguments(args)));
    list.push_back(static_cast<double>(surrogate));
    list.push_back(static_cast<double>(args.surrogate_args.size()));
    for (const double number : args.surrogate_args) list.push_back(number);
    for (const double number : args.numbers) list.push_back(number);
    return list;
  }

  // `args` then points into this object.
  SavedCall(const c10::List<double>& list, NeuronArguments& args) {
    std::size_t read = 0;
    const auto next = [&] { return list.get(read++); };
    args.kind = static_cast<NeuronKind>(next());
    args.options.hard_reset = next() != 0;
    args.options.detach_reset = next() != 0;
    args.options.spiking = next() != 0;
    args.options.decay_input = next() != 0;
    args.store_v = next() != 0;
    given_ = static_cast<unsigned>(next());
    args.surrogate = name_of(static_cast<SurrogateKind>(next()));
    const auto n_surrogate_args = static_cast<std::size_t>(next());
    while (read < list.size()) numbers_.push_back(next());
    args.surrogate_args = c10::ArrayRef<double>(numbers_).slice(0, n_surrogate_args);
    args.numbers = c10::ArrayRef<double>(numbers_).slice(n_surrogate_args);
  }
  SavedCall(const SavedCall&) = delete;
  SavedCall& operator=(const SavedCall&) = delete;

  // Whether the call has a tensor for x, a state or a parameter, counted in this order.
  bool given(std::size_t argument) const { return (given_ >> argument & 1) != 0; }

 private:
  static unsigned given_arguments(const NeuronArguments& args) {
    unsigned bits = 0, bit = 1;
    for_each_argument(args, [&](const Tensor& t) {
      bits |= t.defined() ? bit : 0;
      bit <<= 1;
    });
    return bits;
  }

  unsigned given_ = 0;
  c10::SmallVector<double, max_params + max_surrogate_args> numbers_;
};

class NeuronFunction : public torch::autograd::Function<NeuronFunction> {
 public:
  static constexpr bool is_traceable = true;

  // `given` are the tensors of `args`, for autograd to see.
  static variable_list forward(AutogradContext* ctx, at::TensorList given, const NeuronArguments& args, bool save) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ForwardResults results = call_forward(args, save);
    ctx->set_materialize_grads(false);
    if (save) {
      variable_list saved;
      saved.reserve(given.size() + 1);
      saved.assign(given.begin(), given.end());
      saved.push_back(std::move(results.checkpoints));
      ctx->save_for_backward(std::move(saved));
      ctx->saved_data["call"] = SavedCall::pack(args);
    }
    variable_list outputs{std::move(results.spikes)};
    for (int s = 0; s < describe(args.kind).n_states(); ++s) outputs.push_back(std::move(results.states[s]));
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    BackwardArguments args;
    const SavedCall call(ctx->saved_data.at("call").toDoubleList(), args);
    const variable_list saved = ctx->get_saved_variables();
    const auto n_states = static_cast<std::size_t>(describe(args.kind).n_states());
    const std::size_t n_params = args.numbers.size();

    // The tensors that the call had, then the checkpoints.
    std::size_t read = 0;
    std::size_t argument = 0;
    const auto next = [&] { return call.given(argument++) ? std::optional<Tensor>(saved[read++]) : std::nullopt; };
    args.x = *next();
    for (std::size_t s = 0; s < n_states; ++s) args.states[s] = next();
    args.params = no_tensors(n_params);
    if (read + 1 < saved.size()) {
      args.params = OptionalTensorList();
      args.params.reserve(n_params);
      for (std::size_t j = 0; j < n_params; ++j) args.params.push_back(next());
    }
    args.checkpoints = saved.back();
    args.grad_spikes = maybe(grads[0]);
    for (std::size_t s = 0; s < n_states; ++s) args.grad_states[s] = maybe(grads[1 + s]);

    // Autograd counts the given tensors alone.
    std::size_t input = 0;
    args.needs_grad.reserve(1 + n_states + n_params);
    for (std::size_t i = 0; i < 1 + n_states + n_params; ++i)
      args.needs_grad.push_back(call.given(i) && ctx->needs_input_grad(input++));

    std::vector<Tensor> results = run_backward(args);
    auto result = results.begin();
    variable_list grad_inputs;
    grad_inputs.reserve(input + 2);
    for (std::size_t i = 0; i < args.needs_grad.size(); ++i)
      if (call.given(i)) grad_inputs.push_back(args.needs_grad.get(i) ? std::move(*result++) : Tensor());
    grad_inputs.resize(input + 2);  // for `args` and `save`
    return grad_inputs;
  }

 private:
  // Where something differentiates the backward pass, autograd's own kernel of the backward operator refuses in words;
  // otherwise it has nothing to do, and would take longer than the rest of the call.
  static std::vector<Tensor> run_backward(const BackwardArguments& args) {
    const auto is_dual = [](const std::optional<Tensor>& t) { return t.has_value() && has_tangent(*t); };
    if (at::GradMode::is_enabled() || any_tensor(args, has_tangent) || is_dual(args.grad_spikes) ||
        std::any_of(args.grad_states.begin(), args.grad_states.end(), is_dual))
      return call_backward(args);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_backward(args);
  }
};

// What Function::apply refuses, an exit before it must refuse too.
void refuse_functorch() {
  if (const auto& functorch = at::functorch::functorchTLSAccessor()) functorch->checkSupportsCppAutogradFunction();
}

ForwardResults run_autograd(const NeuronArguments& args) {
  const bool save = at::GradMode::is_enabled() && any_tensor(args, requires_grad);
  // Under forward-mode AD, Function::apply refuses in words; an exit before it would give silent zeros.
  if (!save && !any_tensor(args, has_tangent)) {
    refuse_functorch();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_forward(args, /*save=*/false);
  }
  variable_list given;
  given.reserve(1 + max_states + max_params);
  for_each_argument(args, [&](const Tensor& t) {
    if (t.defined()) given.push_back(t);
  });
  variable_list outputs = NeuronFunction::apply(at::TensorList(given), args, save);
  ForwardResults results;
  results.spikes = std::move(outputs[0]);
  for (std::size_t s = 1; s < outputs.size(); ++s) results.states[s - 1] = std::move(outputs[s]);
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
