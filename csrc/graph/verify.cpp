#include "csrc/graph/internal/verify.h"
#include "csrc/graph/errors.h"

#include <fmt/format.h>

#include <set>

namespace spikeforge::graph {
namespace {

template <class... Args> void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw GraphError("not a graph: " + fmt::format(format, std::forward<Args>(args)...));
}

void verify_node(std::span<const Node> nodes, std::size_t argument_count, Id id) {
  const Node& node = nodes[id];
  const OpInfo& known = info(node.op);
  require((node.op == Op::argument) == (id < argument_count), "node {} ({}) among {} arguments", id, known.name,
          argument_count);
  for (int i = 0; i < known.arity; ++i) {
    const Id operand = node.operands[static_cast<std::size_t>(i)];
    require(operand < id, "node {} ({}) has the operand {}, which does not come before it", id, known.name, operand);
    require(info(nodes[operand].op).result == known.operands[static_cast<std::size_t>(i)],
            "operand {} of node {} ({}) has the wrong kind", i + 1, id, known.name);
  }
}

}  // namespace

void verify(std::span<const Node> nodes, std::size_t argument_count, std::span<const Id> results) {
  require(argument_count <= nodes.size(), "{} arguments in {} nodes", argument_count, nodes.size());
  for (Id id = 0; id < nodes.size(); ++id) verify_node(nodes, argument_count, id);
  for (const Id result : results)
    require(result < nodes.size() && info(nodes[result].op).result == Kind::number, "result {} is not a number",
            result);
}

void verify(const Cell& cell) {
  const Graph& graph = cell.graph();
  verify(graph);
  require(graph.results().size() > cell.state_count(), "{} results with {} states", graph.results().size(),
          cell.state_count());
  require(graph.size() <= most_nodes, "{} nodes, more than {}", graph.size(), most_nodes);
  require(graph.argument_count() == cell.input_count() + cell.state_count() + cell.param_count(),
          "{} arguments for ({})", graph.argument_count(), text_of(cell.signature()));
  std::set<std::string_view> names;
  for (Id id = 0; id < graph.size(); ++id) {
    const std::string& name = graph.name(id);
    require(name.empty() || is_name(name), "node {} is called \"{}\"", id, name);
    require(name.empty() || names.insert(name).second, "two nodes are called {}", name);
  }
}

}  // namespace spikeforge::graph
