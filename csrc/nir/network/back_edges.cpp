#include <spikeforge/base/components.h>
#include <spikeforge/nir/network/back_edges.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string_view>
#include <unordered_map>

namespace spikeforge::nir {

StepOrder step_order(const Graph& graph) {
  const std::size_t n = graph.nodes.size();
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < n; ++i) index.emplace(graph.nodes[i].name, i);
  Successors predecessors(n), successors(n);  // each once
  for (const Edge& edge : graph.edges) {
    const std::size_t from = index.at(edge.from), to = index.at(edge.to);
    if (std::find(predecessors[to].begin(), predecessors[to].end(), from) != predecessors[to].end()) continue;
    predecessors[to].push_back(from);
    successors[from].push_back(to);
  }
  const std::vector<std::size_t> component = strong_components(successors);

  StepOrder order;
  std::vector<bool> done(n);
  const auto waits_for = [&](std::size_t node, bool may_cut) {
    return std::any_of(predecessors[node].begin(), predecessors[node].end(), [&](std::size_t from) {
      return !done[from] && !(may_cut && component[from] == component[node]);
    });
  };
  const auto take = [&](std::size_t node) {
    done[node] = true;
    order.nodes.push_back(node);
  };

  std::deque<std::size_t> queue;
  for (std::size_t i = 0; i < n; ++i) queue.push_back(i);
  const auto is_input = [&](std::size_t i) { return std::holds_alternative<Input>(graph.nodes[i].node.kind); };
  if (const auto first = std::find_if(queue.begin(), queue.end(), is_input); first != queue.end())
    std::rotate(queue.begin(), first, queue.end());

  order.is_back_edge.resize(graph.edges.size());
  std::vector<std::size_t> place(n);
  for (std::size_t idle = 0; !queue.empty();) {
    const std::size_t node = queue.front();
    queue.pop_front();
    // After a whole round without a node, what is left is behind a cycle that nothing leads to.
    const bool is_stuck = idle > queue.size();
    if (waits_for(node, is_stuck || predecessors[node].size() > 1)) {
      queue.push_back(node);
      ++idle;
      continue;
    }
    take(node);
    idle = 0;
  }
  for (std::size_t i = 0; i < n; ++i) place[order.nodes[i]] = i;
  for (std::size_t e = 0; e < graph.edges.size(); ++e)
    order.is_back_edge[e] = place[index.at(graph.edges[e].from)] >= place[index.at(graph.edges[e].to)];
  return order;
}

bool is_layer(const Node& node) {
  return std::visit(
      []<class N>(const N&) {
        using std::is_same_v;
        return is_same_v<N, Affine> || is_same_v<N, Linear> || is_same_v<N, Scale> || is_same_v<N, Conv1d> ||
               is_same_v<N, Conv2d> || is_same_v<N, SumPool2d> || is_same_v<N, AvgPool2d> || is_same_v<N, Flatten>;
      },
      node.kind);
}

bool keeps_zeros(const Node& node) {
  return std::visit(
      []<class N>(const N& n) {
        if constexpr (requires { n.bias; })
          for (std::int64_t k = 0; k < n.bias.count(); ++k)
            if (n.bias.at(k) != 0) return false;
        return true;
      },
      node.kind);
}

}  // namespace spikeforge::nir
