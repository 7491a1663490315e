// Sums of products that are rounded once: a * b + c as one multiply-add. For gradients, of which the last bit is
// nobody's; the forward pass has the same bits everywhere, so each of its operations is rounded.
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

  // All of a graph's, but for what decides a condition: its bits say whether a neuron fires. A product that is needed
  // besides is computed twice: then nothing waits for it.
  explicit MultiplyAdds(const Graph& graph);

  // Which operand of an addition or a subtraction is a product that is not rounded; nothing for any other node.
  std::optional<std::size_t> product_in(Id id) const { return product_.empty() ? std::nullopt : product_[id]; }

  // What a node is computed from: its operands, or, for a multiply-add, the two factors and what is added.
  std::vector<Id> sources(const Graph& graph, Id id) const;

  // For each node, whether `results` are made of it, when multiply-adds read their factors; what those that are
  // `given` are made of does not count. An empty list: none is.
  std::vector<bool> live_nodes(const Graph& graph, std::span<const Id> results,
                               const std::vector<bool>& given = {}) const;

 private:
  std::vector<std::optional<std::size_t>> product_;
};

}  // namespace spikeforge::graph
