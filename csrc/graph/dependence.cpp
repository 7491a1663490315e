#include <spikeforge/graph/internal/dependence.h>

namespace spikeforge::graph {

Dependence::Dependence(const Graph& graph) : bits_(graph.size()) {
  for (Id id = 0; id < graph.size(); ++id) {
    bits_[id].resize(graph.argument_count());
    if (graph.is(id, Op::argument)) bits_[id][id] = true;
    for (const Id operand : graph.operands(id))
      for (std::size_t i = 0; i < graph.argument_count(); ++i)
        if (bits_[operand][i]) bits_[id][i] = true;
  }
}

bool Dependence::beyond(Id node, std::size_t first, std::size_t count) const {
  for (std::size_t i = 0; i < bits_[node].size(); ++i)
    if (bits_[node][i] && (i < first || i >= first + count)) return true;
  return false;
}

}  // namespace spikeforge::graph
