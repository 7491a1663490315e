// A function of scalars as a directed acyclic graph: nodes in static single assignment, each computed from earlier
// ones.
//
// Only `make` creates nodes. It checks kinds, returns an existing node that computes the same (value numbering), and
// simplifies if that keeps every bit of the result (fold.h). No pass has to clean up a graph, except for unused nodes:
// see copy.h.
//
// To walk a graph, go through ids from 0: operands come before their users. The arguments are the first nodes.
#pragma once

#include "csrc/base/export.h"
#include "csrc/graph/op.h"
#include "csrc/graph/surrogate.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace spikeforge::graph {

using Id = std::uint32_t;  // the index of a node in its graph

// The random bits of a draw: words number, number + 1, ... of the random words that a neuron has in each step or, with
// `once`, of those that are the same in all steps.
struct Draw {
  std::uint32_t number = 0;
  bool once = false;

  auto operator<=>(const Draw&) const = default;
};

constexpr std::uint32_t most_draws = 8192;  // words

struct Node {
  Op op{};
  std::array<Id, most_operands> operands{};  // the first info(op).arity are used
  double number = 0;                         // for a constant; for a truth, 0 or 1
  Surrogate surrogate{};                     // for a spike, spike_strict or surrogate_gradient
  Draw draw{};                               // of a draw
};

class SPIKEFORGE_API Graph {
 public:
  static constexpr std::size_t unlimited = std::numeric_limits<Id>::max();

  // Adding a node to a graph of `most_nodes` nodes throws GraphError.
  explicit Graph(std::size_t most_nodes = unlimited) : most_nodes_(most_nodes) {}

  // Adds an argument. All arguments must be added before any other node.
  Id argument(std::string name);
  Id constant(double number);
  Id truth(bool value);
  // Returns the node of an operation. Throws GraphError if the number or the kinds of the operands are wrong. Each call
  // for a draw returns a different draw.
  Id make(Op op, std::span<const Id> operands, const Surrogate& surrogate = {});
  Id make(Op op, std::initializer_list<Id> operands, const Surrogate& surrogate = {}) {
    return make(op, std::span(operands.begin(), operands.size()), surrogate);
  }
  // Returns a draw with these words. Throws GraphError also if another draw uses one of them.
  Id draw(Op law, std::span<const Id> operands, Draw which);
  // Returns a copy of `node`, which may belong to another graph, with these operands. A draw keeps its bits.
  Id like(const Node& node, std::span<const Id> operands);
  // Adds a result of the graph, which must be a number. A node may be several results.
  void add_result(Id id);
  // Sets a name for readers, unless the node already has one. Constants have no name.
  void set_name(Id id, std::string_view name);

  std::size_t size() const { return nodes_.size(); }
  std::size_t argument_count() const { return argument_count_; }
  const Node& operator[](Id id) const { return nodes_[id]; }
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const Id> operands(Id id) const {
    return {nodes_[id].operands.data(), static_cast<std::size_t>(info(nodes_[id].op).arity)};
  }
  Kind kind(Id id) const { return info(nodes_[id].op).result; }
  const std::string& name(Id id) const { return names_[id]; }  // empty if it has none
  std::span<const Id> results() const { return results_; }

  std::uint32_t next_draw() const { return next_draw_; }  // the first number after all numbers in use

  bool is(Id id, Op op) const { return nodes_[id].op == op; }
  bool is_constant(Id id, double number) const { return is(id, Op::constant) && nodes_[id].number == number; }

 private:
  struct Hash {
    std::size_t operator()(const Node& node) const;
  };
  struct Equal {
    bool operator()(const Node& a, const Node& b) const;
  };

  Id number(const Node& node);
  void check(Op op, std::span<const Id> operands) const;
  void take_words(Op law, Draw which);

  std::size_t most_nodes_;
  std::size_t argument_count_ = 0;
  std::uint32_t next_draw_ = 0;
  std::set<Draw> taken_words_;
  std::vector<Node> nodes_;
  std::vector<std::string> names_;
  std::vector<Id> results_;
  std::unordered_map<Node, Id, Hash, Equal> numbering_;
};

}  // namespace spikeforge::graph
