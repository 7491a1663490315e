#include <spikeforge/nn/neuron_module.h>

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
    const char* advice = "; call reset() to start anew";
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
  auto [outputs, states] = call(inputs, states_, store);
  if (!store) {
    states_ = std::move(states);
    return std::move(outputs);
  }
  sequences_ = std::move(states);
  if (steps > 0)  // copied, or each last state would keep its whole sequence
    for (std::size_t i = 0; i < states_.size(); ++i) states_[i] = sequences_[i].select(0, steps - 1).clone();
  return std::move(outputs);
}

Tensors NeuronModule::run_recurrent(at::TensorList inputs, std::int64_t steps, const at::Tensor& w,
                                    const RecurrentOptions& options) {
  TORCH_CHECK_NOT_IMPLEMENTED(is_cell(), title(),
                              ": it is no cell by itself, so that its steps cannot be one operator");
  struct UnderWay {  // also where the operator throws
    NeuronModule& neuron;
    ~UnderWay() {
      neuron.w_ = nullptr;
      neuron.recurrence_ = nullptr;
    }
  } const under_way{*this};
  w_ = &w;
  recurrence_ = &options;
  return run(inputs, steps);
}

NeuronModule::Results NeuronModule::run_cell(const spikeforge::Neuron& cell, at::TensorList inputs,
                                             at::TensorList states, at::TensorList params, bool store) const {
  if (!is_recurrent()) {
    auto [outputs, next] = cell(inputs, states, params, store);
    return {std::move(outputs), std::move(next)};
  }
  RecurrentOptions options = *recurrence_;
  options.store_states = store;
  auto [outputs, next] = recurrent_run(cell, inputs, *w_, states, params, options);
  return {std::move(outputs), std::move(next)};
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
