#include <spikeforge/nir/network/back_edges.h>

#include <algorithm>
#include <deque>
#include <string_view>
#include <unordered_map>

namespace spikeforge::nir {
namespace {

using Indices = std::vector<std::size_t>;

// The number of the strongly connected component of each node (Tarjan 1972), without recursion.
Indices components(const std::vector<Indices>& successors) {
  const std::size_t n = successors.size(), unseen = n;
  Indices component(n, unseen), index(n, unseen), low(n), stack;
  std::vector<bool> on_stack(n);
  std::size_t next_index = 0, next_component = 0;
  struct Visit {
    std::size_t node, next;
  };
  for (std::size_t start = 0; start < n; ++start) {
    if (index[start] != unseen) continue;
    std::vector<Visit> visits = {{start, 0}};
    while (!visits.empty()) {
      const std::size_t node = visits.back().node;
      if (visits.back().next == 0) {
        index[node] = low[node] = next_index++;
        stack.push_back(node);
        on_stack[node] = true;
      }
      if (visits.back().next < successors[node].size()) {
        const std::size_t to = successors[node][visits.back().next++];
        if (index[to] == unseen)
          visits.push_back({to, 0});
        else if (on_stack[to])
          low[node] = std::min(low[node], index[to]);
        continue;
      }
      visits.pop_back();
      if (!visits.empty()) low[visits.back().node] = std::min(low[visits.back().node], low[node]);
      if (low[node] != index[node]) continue;
      for (std::size_t member = n; member != node;) {
        member = stack.back();
        stack.pop_back();
        on_stack[member] = false;
        component[member] = next_component;
      }
      ++next_component;
    }
  }
  return component;
}

}  // namespace

StepOrder step_order(const Graph& graph) {
  const std::size_t n = graph.nodes.size();
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < n; ++i) index.emplace(graph.nodes[i].name, i);
  std::vector<Indices> predecessors(n), successors(n);  // each once
  for (const Edge& edge : graph.edges) {
    const std::size_t from = index.at(edge.from), to = index.at(edge.to);
    if (std::find(predecessors[to].begin(), predecessors[to].end(), from) != predecessors[to].end()) continue;
    predecessors[to].push_back(from);
    successors[from].push_back(to);
  }
  const Indices component = components(successors);

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

}  // namespace spikeforge::nir
