#include "csrc/graph/trace.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"

#include <fmt/format.h>

namespace spikeforge::graph {
namespace {

Cell in_order_of_need(const Cell& cell) {
  Cell ordered(cell.signature());
  ordered.graph() = graph::in_order_of_need(cell.graph());
  return ordered;
}

}  // namespace

Cell trace(Signature signature, const std::function<Step(Values, Values, Values)>& body) {
  const std::string name = signature.name;
  try {
    Cell cell(std::move(signature));
    const Recording recording(cell.graph());
    std::vector<Value> arguments;
    for (Id id = 0; id < cell.graph().argument_count(); ++id) arguments.push_back(recording.value(id));
    const Values all = arguments;
    const Step returned = body(all.first(cell.input_count()), all.subspan(cell.input_count(), cell.state_count()),
                               all.last(cell.param_count()));
    const auto ids = [&](const std::vector<Value>& values) {
      std::vector<Id> list;
      list.reserve(values.size());
      for (const Value& value : values) list.push_back(recording.id(value, "step"));
      return list;
    };
    cell.finish(ids(returned.outputs), ids(returned.next_states));
    return in_order_of_need(cell);
  } catch (const GraphError& error) {
    throw GraphError(fmt::format("neuron {}: {}", name, error.what()));
  }
}

namespace detail {

void throw_wrong_arity(const Signature& signature, int arity) {
  throw GraphError(fmt::format(
      "neuron {}: the lambda takes {} value{}, but {} are named ({}): it takes one for each input, state and parameter",
      signature.name, arity, arity == 1 ? "" : "s",
      signature.inputs.size() + signature.states.size() + signature.params.size(), text_of(signature)));
}

std::vector<std::string> numbered(const char* letter, std::size_t count) {
  std::vector<std::string> names;
  // One name more than the limit is enough to cause the error.
  for (std::size_t i = 0; i < count && i <= most_arguments; ++i) names.push_back(fmt::format("{}{}", letter, i));
  return names;
}

}  // namespace detail
}  // namespace spikeforge::graph
