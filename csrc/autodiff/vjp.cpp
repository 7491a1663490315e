#include "csrc/autodiff/vjp.h"
#include "csrc/autodiff/rules.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Graph;
using graph::Id;
using graph::Value;

// Returns a graph with the arguments of the primal graph, and one for each upstream gradient, named after its result if
// that has a name.
Graph with_arguments(const Graph& primal) {
  graph::UnusedNames names(primal);
  Graph vjp;
  for (Id id = 0; id < primal.argument_count(); ++id) vjp.argument(primal.name(id));
  for (std::size_t k = 0; k < primal.results().size(); ++k) vjp.argument(names.take(fmt::format("grad{}", k)));
  return vjp;
}

class Backward {
 public:
  explicit Backward(const Graph& primal)
      : primal_(primal),
        vjp_(with_arguments(primal)),
        recording_(vjp_),
        values_(lower_into(vjp_, primal)),
        adjoints_(primal.size()) {}

  Graph build() {
    for (std::size_t k = 0; k < primal_.results().size(); ++k)
      accumulate(primal_.results()[k], Adjoint(value(static_cast<Id>(primal_.argument_count() + k))));
    for (Id id = static_cast<Id>(primal_.size()); id-- > primal_.argument_count();)
      if (adjoints_[id]) visit(id, *adjoints_[id]);
    for (Id id = 0; id < primal_.argument_count(); ++id)
      vjp_.add_result(adjoints_[id] ? recording_.id(adjoints_[id]->value(), "vjp") : vjp_.constant(0));
    return compacted(vjp_);
  }

 private:
  Value value(Id id) const { return recording_.value(id); }

  void visit(Id id, const Adjoint& gradient) {
    const std::span<const Id> operands = primal_.operands(id);
    const auto operand = [&](std::size_t i) { return i < operands.size() ? value(values_[operands[i]]) : Value(0); };
    const Site site{operand(0), operand(1), operand(2), value(values_[id]), gradient, primal_[id].surrogate};
    const Contributions parts = contributions(primal_[id].op, site);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (parts[i]) accumulate(operands[i], *parts[i]);
  }

  void accumulate(Id id, const Adjoint& part) { adjoints_[id] = adjoints_[id] ? *adjoints_[id] + part : part; }

  const Graph& primal_;
  Graph vjp_;
  graph::Recording recording_;
  std::vector<Id> values_;  // the copy of each node of the primal graph
  std::vector<std::optional<Adjoint>> adjoints_;
};

}  // namespace

Graph vjp(const Graph& primal) { return Backward(primal).build(); }

std::size_t count_slopes(const Graph& primal) {
  std::vector<bool> reached(primal.size());  // by a gradient
  for (const Id result : primal.results()) reached[result] = true;
  std::vector<std::pair<graph::Surrogate, std::size_t>> sizes;
  std::size_t count = 0;
  for (Id id = static_cast<Id>(primal.size()); id-- > primal.argument_count();) {
    if (!reached[id] || primal.is(id, graph::Op::detach)) continue;
    const std::span<const Id> operands = primal.operands(id);
    const std::size_t differentiated = primal.is(id, graph::Op::add_gradient) ? 2 : operands.size();
    for (const Id operand : operands.first(differentiated)) reached[operand] = true;
    const graph::Surrogate& surrogate = primal[id].surrogate;
    if (!primal.is(id, graph::Op::surrogate_gradient) || !surrogate.kind) continue;
    auto known = std::ranges::find(sizes, surrogate, &std::pair<graph::Surrogate, std::size_t>::first);
    if (known == sizes.end()) known = sizes.emplace(known, surrogate, slope_of(surrogate).size());
    count += known->second;
  }
  return count;
}

bool is_zero(const Graph& vjp, std::size_t result) { return vjp.is_constant(vjp.results()[result], 0); }

}  // namespace spikeforge::autodiff
