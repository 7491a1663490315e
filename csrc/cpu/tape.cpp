#include <spikeforge/cpu/tape.h>
#include <spikeforge/graph/copy.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace spikeforge::cpu {
namespace {

using graph::Graph;
using graph::Id;
using graph::Node;
using graph::Op;

constexpr std::uint32_t nowhere = std::numeric_limits<std::uint32_t>::max();

bool is_constant(const Node& node) { return node.op == Op::constant || node.op == Op::truth; }

class TapeMaker {
 public:
  explicit TapeMaker(const Graph& graph) : graph_(graph), row_(graph.size(), nowhere), last_use_(graph.size(), 0) {
    tape_.arguments = static_cast<std::uint32_t>(graph.argument_count());
    tape_.results = static_cast<std::uint32_t>(graph.results().size());
    for (Id id = 0; id < graph.size(); ++id) {
      if (is_constant(graph[id])) tape_.constants.push_back({graph[id].number, graph.is(id, Op::truth)});
      for (const Id operand : graph.operands(id)) last_use_[operand] = id;
    }
  }

  Tape make() {
    place_known_rows();
    for (Id id = 0; id < graph_.size(); ++id)
      if (!graph_.is(id, Op::argument) && !is_constant(graph_[id])) add(id);
    for (std::size_t k = 0; k < tape_.results; ++k) {
      const std::uint32_t from = row_[graph_.results()[k]];
      if (from == tape_.result(k)) continue;
      Instruction copy{.op = Op::detach, .result = tape_.result(k)};
      copy.operands[0] = from;
      tape_.instructions.push_back(copy);
    }
    return std::move(tape_);
  }

 private:
  // Arguments and constants have rows of their own, and a node that is a result is computed where it belongs.
  void place_known_rows() {
    std::size_t constant = 0;
    for (Id id = 0; id < graph_.size(); ++id) {
      if (graph_.is(id, Op::argument)) row_[id] = tape_.argument(id);
      if (is_constant(graph_[id])) row_[id] = tape_.constant(constant++);
    }
    for (std::size_t k = 0; k < tape_.results; ++k) {
      std::uint32_t& row = row_[graph_.results()[k]];
      if (row == nowhere) row = tape_.result(k);
    }
  }

  void add(Id id) {
    const Node& node = graph_[id];
    Instruction instruction{.op = node.op};
    if (node.surrogate.kind) instruction.surrogate = *node.surrogate.kind;
    instruction.surrogate_args = node.surrogate.args;
    const std::span<const Id> operands = graph_.operands(id);
    for (std::size_t i = 0; i < operands.size(); ++i) instruction.operands[i] = row_[operands[i]];
    // Element by element, an operand's row may become the result's.
    for (const Id operand : operands)
      if (last_use_[operand] == id) release(operand);
    if (row_[id] == nowhere) row_[id] = take();
    instruction.result = row_[id];
    tape_.instructions.push_back(instruction);
  }

  std::uint32_t take() {
    if (free_.empty()) return tape_.temporary(tape_.temporaries++);
    const std::uint32_t row = free_.back();
    free_.pop_back();
    return row;
  }

  void release(Id id) {
    const std::uint32_t row = row_[id];
    if (row >= tape_.temporary(0) && std::ranges::find(free_, row) == free_.end()) free_.push_back(row);
  }

  const Graph& graph_;
  std::vector<std::uint32_t> row_;
  std::vector<Id> last_use_;
  std::vector<std::uint32_t> free_;  // the one that was used last is taken first: it is in the cache
  Tape tape_;
};

}  // namespace

Tape tape_of(const Graph& graph, std::span<const std::size_t> wanted) {
  std::vector<Id> results;
  for (const std::size_t i : wanted) results.push_back(graph.results()[i]);
  return TapeMaker(restricted(graph, graph.argument_count(), results)).make();
}

Tape tape_of(const Graph& graph) {
  std::vector<std::size_t> all(graph.results().size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return tape_of(graph, all);
}

}  // namespace spikeforge::cpu
