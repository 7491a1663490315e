// Sums of products that are rounded once: a * b + c as one multiply-add. For gradients, whose last bit is not
// specified; the forward pass has the same bits on every backend, so each of its operations is rounded.
#pragma once

#include "csrc/graph/graph.h"

#include <optional>
#include <span>
#include <vector>

namespace spikeforge::graph {

class MultiplyAdds {
 public:
  // None: every operation is rounded.
  MultiplyAdds() = default;

  // All multiply-adds of a graph, except those that a condition depends on: rounding there decides whether a neuron
  // fires. A product that has other uses as well is computed twice, so that no other operation waits for it.
  explicit MultiplyAdds(const Graph& graph);

  // The operand of an addition or a subtraction that is a product without rounding; std::nullopt for any other node.
  std::optional<std::size_t> product_in(Id id) const { return product_.empty() ? std::nullopt : product_[id]; }

  // The nodes from which a node is computed: its operands, or, for a multiply-add, the two factors and the summand.
  std::vector<Id> sources(const Graph& graph, Id id) const;

  // For each node, true if `results` depend on it, when multiply-adds read their factors; the dependences of `given`
  // nodes do not count. An empty list: none is given.
  std::vector<bool> live_nodes(const Graph& graph, std::span<const Id> results,
                               const std::vector<bool>& given = {}) const;

 private:
  std::vector<std::optional<std::size_t>> product_;
};

}  // namespace spikeforge::graph
