#include "csrc/nn/neuron_module.h"
#include "csrc/nn/internal/scoped_samples.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/scalar_tensor.h>

#include <limits>
#include <sstream>

namespace spikeforge::nn {
namespace {

std::optional<at::Scalar> scalar(const std::optional<double>& number) {
  return number ? std::optional<at::Scalar>(*number) : std::nullopt;
}

}  // namespace

NeuronModule::NeuronModule(Names state_names, bool persistent_state)
    : names_(std::move(state_names)), states_(names_.size()), sequences_(names_.size()) {
  if (persistent_state)
    for (const std::string& name : names_) make_persistent(name);
}

void NeuronModule::check_live(const at::Tensor& x) const {
  const auto shape = x.sizes().slice(1);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const at::Tensor& state = states_[i];
    if (!state.defined()) continue;
    const char* advice = "; call reset() to restart";
    TORCH_CHECK_VALUE(state.sizes() == shape, title(), ": the state ", names_[i], " has shape ", state.sizes(),
                      ", but a step of the input has ", shape, advice);
    TORCH_CHECK_TYPE(state.scalar_type() == state_type(x.scalar_type()), title(), ": the state ", names_[i], " is ",
                     state.scalar_type(), ", but the input is ", x.scalar_type(), ", whose states are ",
                     state_type(x.scalar_type()), advice);
    TORCH_CHECK_VALUE(state.device() == x.device(), title(), ": the state ", names_[i], " is on ", state.device(),
                      ", but the input is on ", x.device(), advice);
  }
}

Tensors NeuronModule::advance(at::TensorList inputs, std::int64_t steps) {
  for (const at::Tensor& x : inputs)
    TORCH_CHECK_VALUE(x.defined() && x.dim() >= 1 && x.size(0) == steps, title(), ": each input must be [", steps,
                      ", *shape]");
  for (const at::Tensor& x : inputs) check_input(x);
  if (!inputs.empty()) check_live(inputs[0]);
  const bool store = keeping_sequences();
  auto [outputs, states] = layer_ ? call_in(*layer_, inputs, states_, store) : call(inputs, states_, store);
  if (!store) {
    states_ = std::move(states);
    return std::move(outputs);
  }
  sequences_ = std::move(states);
  if (steps > 0) keep_last(inputs, steps);
  return std::move(outputs);
}

// Stores the last states of the sequences, as copies: otherwise each would keep its whole sequence.
void NeuronModule::keep_last(at::TensorList inputs, std::int64_t steps) {
  if (!samples().lengths.defined()) {
    for (std::size_t i = 0; i < states_.size(); ++i) states_[i] = sequences_[i].select(0, steps - 1).clone();
    return;
  }
  // A sample of 0 steps keeps its previous state.
  Tensors nothing;
  for (const at::Tensor& x : inputs) nothing.push_back(x.narrow(0, 0, 0));
  const Samples given = std::exchange(samples_, {});
  Tensors before = call(nothing, states_, false).states;
  samples_ = given;
  for (std::size_t i = 0; i < states_.size(); ++i)
    states_[i] = leaving({.lengths = given.lengths}, sequences_[i], 1, before[i].unsqueeze(0)).squeeze(0);
}

void NeuronModule::check_starts(bool are_numbers) const {
  TORCH_CHECK_VALUE(are_numbers || !samples().start.defined(), title(),
                    ": start: the initial values of states must be scalars, but one is a tensor");
}

NeuronModule::Results NeuronModule::call_in(const Layer& /*layer*/, at::TensorList /*inputs*/,
                                            const Tensors& /*states*/, bool /*store*/) const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, title(), ": fused layers need a neuron with a cell, and this neuron has none");
}

Param NeuronModule::register_constant(const std::string& name, const Constant& constant) {
  const Param& value = constant.value;
  if (!value.is_tensor() && !constant.learn) return value;
  TORCH_CHECK_VALUE(!value.is_tensor() || value.tensor().defined(), kind(), ": ", name, " is an undefined tensor");
  const at::Tensor own =
      value.is_tensor() ? value.tensor().detach().clone() : at::scalar_tensor(value.number(), at::kFloat);
  if (!constant.learn) return register_buffer(name, own);
  const auto& [min, max] = constant.bounds;
  TORCH_CHECK_VALUE(!(min && *min != *min) && !(max && *max != *max) && !(min && max && *min > *max), kind(), ": ",
                    name, " is learned within bounds, so that min must not be above max, and neither NaN");
  if (constant.bounds.any()) bounds_.emplace_back(name, constant.bounds);
  return register_parameter(name, own);
}

Bounds NeuronModule::bounds_of(const std::string& name) const {
  for (const auto& [bounded, bounds] : bounds_)
    if (bounded == name) return bounds;
  return {};
}

Param NeuronModule::bounded(const std::string& name, const Param& value) const {
  const Bounds bounds = bounds_of(name);
  if (!bounds.any() || !value.is_tensor()) return value;
  return at::clamp(value.tensor(), scalar(bounds.min), scalar(bounds.max));
}

std::string text_of(const std::string& name, const Constant& constant) {
  std::ostringstream text;
  text << name << '=';
  if (constant.value.is_tensor())
    text << constant.value.tensor().sizes();
  else
    text << constant.value.number();
  if (constant.learn) text << " learned";
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (constant.bounds.any())
    text << " in [" << constant.bounds.min.value_or(-infinity) << ", " << constant.bounds.max.value_or(infinity) << ']';
  return text.str();
}

}  // namespace spikeforge::nn
