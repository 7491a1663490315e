#include <spikeforge/ops/neuron/functorch.h>
#include <spikeforge/ops/traced/arguments.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

namespace spikeforge::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool requires_grad(const at::Tensor& t) { return t.requires_grad(); }
bool has_tangent(const at::Tensor& t) { return t._fw_grad(/*level=*/0).defined(); }

template <class Predicate>
bool any_of(const TracedArguments& args, Predicate&& is) {
  const auto any = [&](at::TensorList list) { return std::any_of(list.begin(), list.end(), is); };
  return any(args.inputs) || any(args.states) || any(args.params);
}

bool any_dual(const OptionalTensorList& list) {
  return std::any_of(list.begin(), list.end(), [](const std::optional<at::Tensor>& t) {
    return t.has_value() && t->defined() && has_tangent(*t);
  });
}

class TracedFunction : public torch::autograd::Function<TracedFunction> {
 public:
  static constexpr bool is_traceable = true;

  // `given` are the tensors of `args`, for autograd to see.
  static variable_list forward(AutogradContext* ctx, at::TensorList given, const TracedArguments& args, bool save) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    TracedResults results = call_forward(args, save);
    ctx->set_materialize_grads(false);
    if (save) {
      variable_list saved(given.begin(), given.end());
      saved.push_back(results.checkpoints.at(0));
      ctx->save_for_backward(std::move(saved));
      ctx->saved_data["neuron"] = std::string(args.neuron);
      ctx->saved_data["has_states"] = !args.states.empty();
      ctx->saved_data["store_states"] = args.store_states;
    }
    variable_list all = std::move(results.outputs);
    for (at::Tensor& state : results.states) all.push_back(std::move(state));
    return all;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const std::string neuron = ctx->saved_data.at("neuron").toStringRef();
    const graph::Cell& cell = cell_of(neuron).cell;
    const variable_list saved = ctx->get_saved_variables();
    const std::size_t n_states = ctx->saved_data.at("has_states").toBool() ? cell.state_count() : 0;
    const at::TensorList tensors = saved;

    TracedBackwardArguments args;
    args.neuron = neuron;
    args.inputs = tensors.slice(0, cell.input_count());
    args.states = tensors.slice(cell.input_count(), n_states);
    args.params = tensors.slice(cell.input_count() + n_states, cell.param_count());
    args.checkpoints = tensors.slice(tensors.size() - 1);
    args.store_states = ctx->saved_data.at("store_states").toBool();
    const auto maybe = [](const at::Tensor& t) { return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt; };
    for (std::size_t k = 0; k < cell.output_count(); ++k) args.grad_outputs.push_back(maybe(grads[k]));
    for (std::size_t k = cell.output_count(); k < grads.size(); ++k) args.grad_states.push_back(maybe(grads[k]));

    const std::size_t given = tensors.size() - 1;
    args.needs_grad.reserve(given);
    for (std::size_t i = 0; i < given; ++i) args.needs_grad.push_back(ctx->needs_input_grad(i));

    Tensors results = run_backward(args);
    auto result = results.begin();
    variable_list grad_inputs(given + 2);  // for `args` and `save`
    for (std::size_t i = 0; i < given; ++i)
      if (args.needs_grad.get(i)) grad_inputs[i] = std::move(*result++);
    return grad_inputs;
  }

 private:
  // As for the predefined neurons: autograd's own kernel of the backward operator refuses a second derivative in words,
  // and is left out where nobody can ask for one.
  static Tensors run_backward(const TracedBackwardArguments& args) {
    if (at::GradMode::is_enabled() || any_of(args, has_tangent) || any_dual(args.grad_outputs) ||
        any_dual(args.grad_states))
      return call_backward(args);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_backward(args);
  }
};

traced::Outputs run_autograd(std::string_view neuron, at::TensorList inputs, at::TensorList states,
                             at::TensorList params, bool store_states) {
  const TracedArguments args{neuron, inputs, states, params, store_states};
  check_strided(args);
  refuse_functorch("run");
  const bool save = at::GradMode::is_enabled() && any_of(args, requires_grad);
  // Under forward-mode AD, Function::apply refuses in words; an exit before it would give silent zeros.
  if (!save && !any_of(args, has_tangent)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    TracedResults results = call_forward(args, /*save=*/false);
    return {std::move(results.outputs), std::move(results.states)};
  }
  variable_list given;
  given.reserve(inputs.size() + states.size() + params.size());
  for (const at::TensorList list : {inputs, states, params}) given.insert(given.end(), list.begin(), list.end());
  Tensors outputs = TracedFunction::apply(at::TensorList(given), args, save);
  const auto first_state = outputs.begin() + static_cast<std::ptrdiff_t>(cell_of(neuron).cell.output_count());
  Tensors last(std::make_move_iterator(first_state), std::make_move_iterator(outputs.end()));
  outputs.erase(first_state, outputs.end());
  return {std::move(outputs), std::move(last)};
}

TORCH_LIBRARY_IMPL(spikeforge, Autograd, library) {
  library.impl("run", TORCH_FN(run_autograd));
  library.impl("run_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("run_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops
