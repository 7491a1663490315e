#include "csrc/nir/network/back_edges.h"
#include "csrc/base/graph_order.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace spikeforge::nir {
namespace {

// A round-robin queue of nodes: next() returns the first node after the one that was taken last, cyclically.
class Round {
 public:
  explicit Round(std::size_t first) : at_(first) {}
  void insert(std::size_t node) { nodes_.insert(node); }
  bool empty() const { return nodes_.empty(); }
  std::size_t next() const {
    const auto found = nodes_.lower_bound(at_);
    return found == nodes_.end() ? *nodes_.begin() : *found;
  }
  void take(std::size_t node) {
    nodes_.erase(node);
    at_ = node;
  }

 private:
  std::set<std::size_t> nodes_;
  std::size_t at_;
};

}  // namespace

StepOrder step_order(const Graph& graph) {
  const std::size_t n = graph.nodes.size();
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < n; ++i) index.emplace(graph.nodes[i].name, i);
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  edges.reserve(graph.edges.size());
  for (const Edge& edge : graph.edges) edges.emplace_back(index.at(edge.from), index.at(edge.to));
  auto distinct = edges;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  Successors successors(n);
  std::vector<std::size_t> predecessors(n);
  for (const auto& [from, to] : distinct) {
    successors[from].push_back(to);
    ++predecessors[to];
  }
  const std::vector<std::size_t> component = strong_components(successors);

  // The number of predecessors that each node waits for. If it has several, those of its own component do not count.
  const auto is_outside = [&](std::size_t from, std::size_t to) { return component[from] != component[to]; };
  const auto counts = [&](std::size_t from, std::size_t to) { return predecessors[to] == 1 || is_outside(from, to); };
  std::vector<std::size_t> waits(n), waits_outside(n);
  for (const auto& [from, to] : distinct) {
    waits[to] += counts(from, to);
    waits_outside[to] += is_outside(from, to);
  }

  const auto is_input = [](const NamedNode& named) { return std::holds_alternative<Input>(named.node.kind); };
  const auto input = std::find_if(graph.nodes.begin(), graph.nodes.end(), is_input);
  const std::size_t first = input == graph.nodes.end() ? 0 : static_cast<std::size_t>(input - graph.nodes.begin());
  // If no node is ready, a cycle without predecessors outside is cut at the first node that waits only for that cycle.
  Round ready(first), cuttable(first);
  StepOrder order;
  std::vector<std::size_t> place(n, n);  // n: not processed
  const auto offer = [&](std::size_t node) {
    if (waits[node] == 0) ready.insert(node);
    if (waits_outside[node] == 0) cuttable.insert(node);
  };
  for (std::size_t node = 0; node < n; ++node) offer(node);
  while (order.nodes.size() < n) {
    const std::size_t node = (ready.empty() ? cuttable : ready).next();
    place[node] = order.nodes.size();
    order.nodes.push_back(node);
    for (Round* round : {&ready, &cuttable}) round->take(node);
    for (const std::size_t to : successors[node]) {
      if (place[to] < n) continue;
      waits[to] -= counts(node, to);
      waits_outside[to] -= is_outside(node, to);
      offer(to);
    }
  }
  order.is_back_edge.resize(edges.size());
  for (std::size_t e = 0; e < edges.size(); ++e)
    order.is_back_edge[e] = place[edges[e].first] >= place[edges[e].second];
  return order;
}

bool is_layer(const Node& node) {
  return std::visit(
      []<class N>(const N&) {
        return is_one_of<N, Affine, Linear, Scale, Conv1d, Conv2d, SumPool2d, AvgPool2d, Flatten>;
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
