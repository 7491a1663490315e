// Orders of directed graphs. The nodes are 0, 1, ...; a graph is the list of the successors of each node.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <vector>

namespace spikeforge {

using Successors = std::vector<std::vector<std::size_t>>;

// Returns the index of the strongly connected component of each node (Tarjan 1972), without recursion.
inline std::vector<std::size_t> strong_components(const Successors& successors) {
  const std::size_t n = successors.size(), unseen = n;
  std::vector<std::size_t> component(n, unseen), index(n, unseen), low(n), stack;
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

// Returns the nodes in topological order; if several nodes can be next, the smallest one is (Kahn 1962). The nodes of a
// cycle, and the nodes after it, are omitted.
inline std::vector<std::size_t> in_order(const Successors& successors) {
  std::vector<std::size_t> waiting(successors.size()), order;
  for (const std::vector<std::size_t>& targets : successors)
    for (const std::size_t target : targets) ++waiting[target];
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t node = 0; node < successors.size(); ++node)
    if (waiting[node] == 0) ready.push(node);
  while (!ready.empty()) {
    const std::size_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const std::size_t target : successors[node])
      if (--waiting[target] == 0) ready.push(target);
  }
  return order;
}

}  // namespace spikeforge
