#include "csrc/graph/layer.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/value.h"

#include <vector>

namespace spikeforge::graph {
namespace {

Signature with_arguments(const Cell& neuron, const Layer& around) {
  UnusedNames names(neuron.graph());
  Signature signature = neuron.signature();
  if (around.residual) signature.inputs.push_back(names.take("residual"));
  if (around.normalised)
    for (const char* name : {"mean", "scale", "shift"}) signature.params.push_back(names.take(name));
  if (around.with_statistics)
    for (const char* name : {"offset", "slope"}) signature.params.push_back(names.take(name));
  return signature;
}

Value joined(Residual residual, const Value& spike, const Value& other) {
  switch (residual) {
    case Residual::add: return spike + other;
    case Residual::logical_and: return spike * other;
    case Residual::inhibit: return (1 - spike) * other;
    case Residual::membrane: return spike;
  }
  return spike;
}

}  // namespace

std::optional<Residual> residual_of(std::string_view name) {
  for (const Residual residual : {Residual::add, Residual::logical_and, Residual::inhibit, Residual::membrane})
    if (name_of(residual) == name) return residual;
  return std::nullopt;
}

std::string_view name_of(Residual residual) {
  switch (residual) {
    case Residual::add: return "add";
    case Residual::logical_and: return "and";
    case Residual::inhibit: return "iand";
    case Residual::membrane: return "membrane";
  }
  return "";
}

Cell layer(const Cell& neuron, const Layer& around) {
  Cell cell(with_arguments(neuron, around));
  const Recording recording(cell.graph());
  std::vector<Id> arguments;
  for (std::size_t i = 0; i < neuron.input_count(); ++i) arguments.push_back(cell.input(i));
  for (std::size_t s = 0; s < neuron.state_count(); ++s) arguments.push_back(cell.state(s));
  for (std::size_t j = 0; j < neuron.param_count(); ++j) arguments.push_back(cell.param(j));
  // The layer's parameters follow those of the neuron.
  const auto param = [&](std::size_t i) { return recording.value(cell.param(neuron.param_count() + i)); };
  const auto residual = [&] { return recording.value(cell.input(neuron.input_count())); };
  const bool is_membrane = around.residual == Residual::membrane;
  if (around.normalised)
    arguments[0] = recording.id((recording.value(cell.input(0)) - param(0)) * param(1) + param(2), "layer");
  if (is_membrane) arguments[0] = recording.id(recording.value(arguments[0]) + residual(), "layer");

  std::vector<Id> outputs = copy_into(cell.graph(), neuron.graph(), arguments, neuron.graph().results());
  const std::vector<Id> next_states(outputs.begin() + static_cast<std::ptrdiff_t>(neuron.output_count()),
                                    outputs.end());
  outputs.resize(neuron.output_count());
  if (is_membrane)
    outputs.push_back(arguments[0]);
  else if (around.residual)
    outputs[0] = recording.id(joined(*around.residual, recording.value(outputs[0]), residual()), "layer");
  if (around.with_statistics) {
    const Value x = recording.value(cell.input(0)), centered = x - param(0);
    outputs.push_back(recording.id(param(3) * x + .5 * param(4) * (centered * centered), "layer"));
  }
  cell.finish(outputs, next_states);
  return cell;
}

}  // namespace spikeforge::graph
