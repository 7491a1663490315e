#include <spikeforge/autodiff/rules.h>
#include <spikeforge/autodiff/vjp.h>
#include <spikeforge/graph/internal/copy.h>
#include <spikeforge/graph/internal/lower.h>
#include <spikeforge/graph/internal/unused_names.h>

#include <fmt/format.h>

namespace spikeforge::autodiff {
namespace {

using graph::Graph;
using graph::Id;
using graph::Value;

// An argument for each of the primal graph and one for each gradient, named after the result if that has a name.
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

  Graph run() {
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
  std::vector<Id> values_;  // what became of each node of the primal graph
  std::vector<std::optional<Adjoint>> adjoints_;
};

}  // namespace

Graph vjp(const Graph& primal) { return Backward(primal).run(); }

bool is_zero(const Graph& vjp, std::size_t result) { return vjp.is_constant(vjp.results()[result], 0); }

}  // namespace spikeforge::autodiff
