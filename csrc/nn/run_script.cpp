#include "csrc/nn/internal/run_script.h"

#include <set>

namespace spikeforge::nn {
namespace {

std::string in_brackets(const Names& values) { return "[" + c10::Join(", ", values) + "]"; }

}  // namespace

std::string clamped(const std::string& tensor, const Bounds& bounds) {
  if (!bounds.any()) return tensor;
  std::string text = "torch.clamp(" + tensor;
  if (bounds.min) text += ", min=" + script::number(*bounds.min);
  if (bounds.max) text += ", max=" + script::number(*bounds.max);
  return text + ")";
}

Script RunScript::script() const {
  Script result{.name = script::identifier(name), .inputs = {}, .outputs = outputs};
  result.texts = {{"neuron_text", text}};
  for (const std::string& input : inputs) result.inputs.push_back(script::identifier(input));
  const std::string& x = result.inputs.at(0);

  std::set<std::string> methods;
  Names starts, constants;
  for (const State& state : states) {
    const bool at_buffer = !state.start_buffer.empty();
    result.states.push_back(state.name);
    const std::string value =
        at_buffer ? clamped(script::member(state.start_buffer), state.start_bounds) : script::number(state.start);
    starts.push_back((at_buffer ? "self.start_at(" : "self.start(") + script::member(state.name) + ", " + x + ", " +
                     value + ")");
    methods.insert(at_buffer ? script::start_at : script::start);
  }
  for (const auto& [param, value, bounds] : params) {
    constants.push_back(value.is_tensor() ? clamped(script::member(param), bounds)
                                          : "self.number(" + script::number(value.number()) + ", " + x + ")");
    if (!value.is_tensor()) methods.insert(script::number_of);
  }
  result.forward = "out, states = torch.ops.spikeforge.run(self.neuron_text, " + in_brackets(result.inputs) + ", " +
                   in_brackets(starts) + ", " + in_brackets(constants) + ", store_states=False" +
                   (scan ? ", scan=True)\n" : ")\n");
  for (std::size_t i = 0; i < states.size(); ++i)
    result.forward += script::member(states[i].name) + " = states[" + std::to_string(i) + "]\n";
  Names results;
  for (std::size_t i = 0; i < outputs; ++i) results.push_back("out[" + std::to_string(i) + "]");
  result.forward += "return " + c10::Join(", ", results);
  for (const std::string& method : methods) result.methods += method;
  return result;
}

}  // namespace spikeforge::nn
