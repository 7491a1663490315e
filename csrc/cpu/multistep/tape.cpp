#include "csrc/cpu/multistep/tape.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

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
  TapeMaker(const Graph& graph, const graph::MultiplyAdds& multiply_adds, std::vector<Id> results)
      : graph_(graph),
        multiply_adds_(multiply_adds),
        results_(std::move(results)),
        live_(multiply_adds.live_nodes(graph, results_)),
        row_(graph.size(), nowhere),
        last_use_(graph.size(), 0) {
    find_draws();
    tape_.arguments = static_cast<std::uint32_t>(graph.argument_count() + tape_.drawn.size());
    tape_.results = static_cast<std::uint32_t>(results_.size());
    for (Id id = 0; id < graph.size(); ++id) {
      if (!live_[id]) continue;
      if (is_constant(graph[id])) tape_.constants.push_back({graph[id].number, graph.is(id, Op::truth)});
      for (const Id source : multiply_adds.sources(graph, id)) last_use_[source] = id;
    }
  }

  Tape make() {
    place_known_rows();
    for (Id id = 0; id < graph_.size(); ++id)
      if (live_[id] && !graph_.is(id, Op::argument) && !is_constant(graph_[id])) add(id);
    for (std::size_t k = 0; k < tape_.results; ++k) {
      const std::uint32_t from = row_[results_[k]];
      if (from == tape_.result(k)) continue;
      Instruction copy{.op = Op::detach, .result = tape_.result(k)};
      copy.operands[0] = from;
      tape_.instructions.push_back(copy);
    }
    return std::move(tape_);
  }

 private:
  void find_draws() {
    std::set<graph::Draw> drawn;
    for (Id id = 0; id < graph_.size(); ++id)
      for (std::uint32_t i = 0; live_[id] && i < graph::info(graph_[id].op).words; ++i)
        drawn.insert({graph_[id].draw.number + i, graph_[id].draw.once});
    tape_.drawn.assign(drawn.begin(), drawn.end());
  }

  std::uint32_t row_of(const graph::Draw& draw) const {
    const auto place = std::ranges::lower_bound(tape_.drawn, draw);
    return tape_.bits(static_cast<std::size_t>(place - tape_.drawn.begin()));
  }

  // Assigns separate rows to arguments and constants, and to each result its row.
  void place_known_rows() {
    std::size_t constant = 0;
    for (Id id = 0; id < graph_.size(); ++id) {
      if (graph_.is(id, Op::argument)) row_[id] = tape_.argument(id);
      if (live_[id] && is_constant(graph_[id])) row_[id] = tape_.constant(constant++);
    }
    for (std::size_t k = 0; k < tape_.results; ++k) {
      std::uint32_t& row = row_[results_[k]];
      if (row == nowhere) row = tape_.result(k);
    }
  }

  void add(Id id) {
    const Node& node = graph_[id];
    Instruction instruction{.op = node.op};
    if (node.surrogate.kind) instruction.surrogate = *node.surrogate.kind;
    instruction.surrogate_args = node.surrogate.args;
    if (const std::optional<std::size_t> product = multiply_adds_.product_in(id))
      instruction.multiply_add = node.op == Op::add ? MultiplyAdd::sum
                                 : *product == 1    ? MultiplyAdd::minus_product
                                                    : MultiplyAdd::minus_addend;
    const std::vector<Id> sources = multiply_adds_.sources(graph_, id);
    const std::uint32_t words = graph::info(node.op).words;
    for (std::uint32_t i = 0; i < words; ++i) instruction.operands[i] = row_of({node.draw.number + i, node.draw.once});
    for (std::size_t i = 0; i < sources.size(); ++i) instruction.operands[words + i] = row_[sources[i]];
    // Operations are elementwise, so the result may reuse the row of an operand.
    for (const Id source : sources)
      if (last_use_[source] == id) release(source);
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
  const graph::MultiplyAdds& multiply_adds_;
  const std::vector<Id> results_;
  const std::vector<bool> live_;
  std::vector<std::uint32_t> row_;
  std::vector<Id> last_use_;
  std::vector<std::uint32_t> free_;  // the most recently used one is taken first: it is in the cache
  Tape tape_;
};

}  // namespace

int operands_of(const Instruction& instruction) {
  if (instruction.multiply_add != MultiplyAdd::no) return 3;
  const graph::OpInfo& info = graph::info(instruction.op);
  return static_cast<int>(info.words) + info.arity;
}

Tape tape_of(const Graph& graph, std::span<const std::size_t> wanted, const graph::MultiplyAdds& multiply_adds) {
  std::vector<Id> results;
  for (const std::size_t i : wanted) results.push_back(graph.results()[i]);
  return TapeMaker(graph, multiply_adds, std::move(results)).make();
}

Tape tape_of(const Graph& graph) {
  std::vector<std::size_t> all(graph.results().size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return tape_of(graph, all);
}

}  // namespace spikeforge::cpu
