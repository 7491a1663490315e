#include "csrc/nn/neuron.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/text.h"
#include "csrc/nn/internal/run_script.h"
#include "csrc/nn/internal/scoped_samples.h"
#include "ops/common/checks.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <ostream>

namespace spikeforge::nn {
namespace {

Names names_of(const std::vector<graph::State>& states) {
  Names names;
  for (const graph::State& state : states) names.push_back(state.name);
  return names;
}

std::string quoted(const Names& names) { return names.empty() ? "none" : c10::Join(", ", names); }

}  // namespace

NeuronOptions& NeuronOptions::param(std::string name, Constant constant) {
  std::erase_if(params_, [&](const auto& given) { return given.first == name; });
  params_.emplace_back(std::move(name), std::move(constant));
  return *this;
}

NeuronImpl::NeuronImpl(NeuronOptions options)
    : NeuronModule(names_of(graph::parse(options.neuron().text()).signature().states), options.persistent_state()),
      options_(std::move(options)) {
  const graph::Cell cell = graph::parse(options_.neuron().text());
  const graph::Signature& signature = cell.signature();
  name_ = signature.name;
  draws_ = graph::draws(cell.graph());
  inputs_ = signature.inputs.size() == 1 ? Names{"in"} : signature.inputs;
  if (cell.output_count() == 1)
    outputs_ = {"out"};
  else
    for (std::size_t i = 0; i < cell.output_count(); ++i) outputs_.push_back("out" + std::to_string(i));
  for (const graph::State& state : signature.states) initial_.push_back(state.initial);

  for (const auto& [name, constant] : options_.params())
    TORCH_CHECK_VALUE(std::find(signature.params.begin(), signature.params.end(), name) != signature.params.end(),
                      name_, ": it has no parameter ", name, "; its parameters: ", quoted(signature.params));
  for (const std::string& name : signature.params) {
    const auto given = std::find_if(options_.params().begin(), options_.params().end(),
                                    [&](const auto& p) { return p.first == name; });
    TORCH_CHECK_VALUE(given != options_.params().end(), name_, ": the parameter ", name,
                      " is missing; set it by NeuronOptions(...).param(\"", name, "\", value)");
    constants_.push_back(register_constant(name, given->second));
    param_names_.push_back(name);
  }
}

NeuronModule::Results NeuronImpl::call(at::TensorList inputs, const Tensors& states, bool store) const {
  const Layer alone = [&](const spikeforge::Neuron& neuron, at::TensorList x, at::TensorList given,
                          at::TensorList params, bool storing) -> Results {
    auto [outputs, next] = neuron(x, given, params, storing, options_.scan() && !samples().any(),
                                  maybe_given(samples().lengths), maybe_given(samples().start));
    return {std::move(outputs), std::move(next)};
  };
  return call_in(alone, inputs, states, store);
}

NeuronModule::Results NeuronImpl::call_in(const Layer& layer, at::TensorList inputs, const Tensors& states,
                                          bool store) const {
  TORCH_CHECK_VALUE(inputs.size() == inputs_.size(), title(), ": takes ", inputs_.size(), " inputs (", quoted(inputs_),
                    "), but got ", inputs.size());
  const at::Tensor& x = inputs[0];
  const at::ScalarType type = state_type(x.scalar_type());
  if (params_type_ != type) {
    params_.clear();
    for (const Param& constant : constants_)
      params_.push_back(constant.is_tensor() ? constant.tensor() : at::scalar_tensor(constant.number(), type));
    params_type_ = type;
  }
  const auto undefined = [](const at::Tensor& state) { return !state.defined(); };
  Tensors within;
  if (has_bounds()) {
    within = params_;
    for (std::size_t j = 0; j < within.size(); ++j) within[j] = bounded(param_names_[j], within[j]).tensor();
  }
  const auto run = [&](at::TensorList given) -> Results {
    return layer(options_.neuron(), inputs, given, has_bounds() ? within : params_, store);
  };
  if (std::all_of(states.begin(), states.end(), undefined)) return run({});
  if (std::none_of(states.begin(), states.end(), undefined)) return run(states);
  Tensors all = states;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!all[i].defined()) all[i] = at::full(x.sizes().slice(1), initial_[i], x.options().dtype(type));
  return run(all);
}

Script NeuronImpl::script() const {
  const graph::Cell cell = graph::parse(options_.neuron().text());
  RunScript result{.name = name_,
                   .text = options_.neuron().text(),
                   .inputs = inputs_.size() == 1 ? Names{"x"} : inputs_,
                   .outputs = outputs_.size(),
                   .scan = options_.scan(),
                   .states = {},
                   .params = {}};
  for (std::size_t i = 0; i < initial_.size(); ++i) result.states.push_back({state_names()[i], initial_[i]});
  const Names& params = cell.signature().params;
  for (std::size_t i = 0; i < params.size(); ++i)
    result.params.push_back({params[i], constants_[i], bounds_of(params[i])});
  return result.script();
}

void NeuronImpl::pretty_print(std::ostream& stream) const {
  stream << name_ << '(' << c10::Join(", ", graph::parse(options_.neuron().text()).signature().inputs) << "; "
         << c10::Join(", ", state_names());
  const char* separator = "; ";
  for (const auto& [name, constant] : options_.params()) {
    stream << separator << text_of(name, constant);
    separator = ", ";
  }
  stream << ')';
}

NeuronOptions LIOptions::neuron() const {
  if (!tau_.value.is_tensor()) ops::check_positive("LI", "tau", tau_.value.number());
  const bool decay_input = decay_input_;
  NeuronOptions options(
      trace("LI", {"x"}, {"v"}, {"tau", "v_rest"}, [decay_input](Value x, Value v, Value tau, Value v_rest) {
        const Value next = decay_input ? v + 1 / tau * (x - (v - v_rest)) : v - 1 / tau * (v - v_rest) + x;
        return spikeforge::step({next}, {next});
      }));
  return options.param("tau", tau_).param("v_rest", v_rest_).persistent_state(persistent_).scan(scan_);
}

}  // namespace spikeforge::nn
