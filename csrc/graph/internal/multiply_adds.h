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
  // No multiply-adds: every operation is rounded.
  MultiplyAdds() = default;

  // Finds all multiply-adds of a graph, except those on which a condition depends: rounding there decides whether a
  // neuron fires. A product with other uses is computed twice, so that no other operation waits for it.
  explicit MultiplyAdds(const Graph& graph);

  // Returns the operand of an addition or a subtraction that is a product without rounding; std::nullopt for any other
  // node.
  std::optional<std::size_t> product_in(Id id) const { return product_.empty() ? std::nullopt : product_[id]; }

  // Returns the nodes from which a node is computed: its operands, or, for a multiply-add, the two factors and the
  // summand.
  std::vector<Id> sources(const Graph& graph, Id id) const;

  // For each node, true if `results` depend on it, where multiply-adds read their factors. The dependences of nodes
  // that are true in `given` do not count; an empty list is false for all nodes.
  std::vector<bool> live_nodes(const Graph& graph, std::span<const Id> results,
                               const std::vector<bool>& given = {}) const;

 private:
  std::vector<std::optional<std::size_t>> product_;
};

}  // namespace spikeforge::graph
