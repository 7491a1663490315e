#include "csrc/autodiff/gather.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/value.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Graph;
using graph::Id;
using graph::Op;
using graph::Value;

// Sums of more products than this are evaluated immediately, since each operation on a sum costs one operation per
// product.
constexpr std::size_t most_products = 2;

// factor * base or its negative, where the base depends on the gradients and the factor does not.
struct Product {
  Id base;
  std::optional<Value> factor;  // std::nullopt: 1
  bool negative = false;
  std::optional<Value> mask{};  // where it is false, the product is 0, even for an infinite base

  Value signed_factor() const {
    const Value magnitude = factor.value_or(1);
    const Value chosen = negative ? -magnitude : magnitude;
    return mask ? where(*mask, chosen, 0) : chosen;
  }

  Product where_holds(const Value& condition) const {
    return {base, factor, negative, mask ? *mask && condition : condition};
  }
};

// A sum of products, and of a term that does not depend on the gradients.
struct Sum {
  std::vector<Product> products;
  std::optional<Value> rest;
};

class Gathering {
 public:
  Gathering(const Graph& graph, Range gradients)
      : from_(graph), gradients_(gradients), recording_(to_), depends_(graph), uses_(uses_in(graph)) {
    for (Id id = 0; id < graph.argument_count(); ++id) to_.argument(graph.name(id));
  }

  Graph build() {
    copies_.resize(from_.size());
    sums_.resize(from_.size());
    for (Id id = 0; id < from_.size(); ++id)
      if (uses_[id] > 0 || from_.is(id, Op::argument)) visit(id);
    for (const Id result : from_.results()) to_.add_result(copy_of(result));
    return compacted(to_);
  }

 private:
  static std::vector<int> uses_in(const Graph& graph) {
    const std::vector<bool> live = live_nodes(graph);
    std::vector<int> uses(graph.size());
    for (Id id = 0; id < graph.size(); ++id)
      if (live[id])
        for (const Id operand : graph.operands(id)) ++uses[operand];
    for (const Id result : graph.results()) ++uses[result];
    return uses;
  }

  bool varies(Id id) const {
    for (std::size_t j = 0; j < gradients_.count; ++j)
      if (depends_.on(id, gradients_.first + j)) return true;
    return false;
  }

  void visit(Id id) {
    if (from_.is(id, Op::argument)) {
      copies_[id] = id;
      if (varies(id)) sums_[id] = only(id);
      return;
    }
    if (!varies(id)) {
      copies_[id] = copy_node(to_, from_, id, copies_);
      return;
    }
    Sum sum = sum_at(id);
    const Product* first = sum.products.empty() ? nullptr : &sum.products[0];
    const bool plain = sum.products.size() == 1 && !sum.rest && !first->factor && !first->negative && !first->mask;
    if (!plain && (uses_[id] > 1 || sum.products.size() > most_products)) sum = only(id_of(total(sum)));
    sums_[id] = std::move(sum);
  }

  Sum sum_at(Id id) {
    const std::span<const Id> x = from_.operands(id);
    switch (from_[id].op) {
      case Op::add: return added(sum_of(x[0]), sum_of(x[1]));
      case Op::subtract: return added(sum_of(x[0]), negative(sum_of(x[1])));
      case Op::neg: return negative(sum_of(x[0]));
      case Op::multiply:
        if (varies(x[0]) != varies(x[1])) {
          const std::size_t linear = varies(x[0]) ? 0 : 1;
          return times(sum_of(x[linear]), recording_.value(copies_[x[1 - linear]]));
        }
        break;
      case Op::where:
        if (!varies(x[0])) return chosen(recording_.value(copies_[x[0]]), sum_of(x[1]), sum_of(x[2]));
        break;
      default: break;
    }
    // All other operations are copied unchanged.
    for (const Id operand : x) copies_[operand] = copy_of(operand);
    return only(copy_node(to_, from_, id, copies_));
  }

  Sum sum_of(Id id) const {
    if (varies(id)) return sums_[id];
    if (from_.is_constant(id, 0)) return {};
    return {{}, recording_.value(copies_[id])};
  }

  static Sum times(Sum sum, const Value& factor) {
    for (Product& product : sum.products) product.factor = product.factor ? *product.factor * factor : factor;
    if (sum.rest) sum.rest = *sum.rest * factor;
    return sum;
  }

  static Sum negative(Sum sum) {
    for (Product& product : sum.products) product.negative = !product.negative;
    if (sum.rest) sum.rest = -*sum.rest;
    return sum;
  }

  static Sum added(Sum sum, const Sum& other) {
    for (const Product& product : other.products) {
      const auto same = std::ranges::find(sum.products, product.base, &Product::base);
      if (same == sum.products.end())
        sum.products.push_back(product);
      else
        *same = {product.base, same->signed_factor() + product.signed_factor()};
    }
    if (other.rest) sum.rest = sum.rest ? *sum.rest + *other.rest : *other.rest;
    return sum;
  }

  // Returns the sum of a `where`. The branch that is not chosen has the factor 0, even if its derivative is infinite.
  static Sum chosen(const Value& condition, Sum sum, Sum other) {
    for (Product& product : sum.products) product = product.where_holds(condition);
    for (Product& product : other.products) product = product.where_holds(!condition);
    if (sum.rest) sum.rest = where(condition, *sum.rest, 0);
    if (other.rest) other.rest = where(condition, 0, *other.rest);
    return added(std::move(sum), other);
  }

  static Sum only(Id base) { return {.products = {{base, {}}}, .rest = {}}; }

  Value total(const Sum& sum) const {
    std::optional<Value> result = sum.rest;
    for (const Product& product : sum.products) {
      const Value base = recording_.value(product.base);
      const Value term = product.factor ? base * *product.factor : base;
      const std::optional<Value> others = result;
      if (others)
        result = product.negative ? *others - term : term + *others;
      else
        result = product.negative ? -term : term;
      if (product.mask) result = where(*product.mask, *result, others.value_or(0));
    }
    return *result;
  }

  Id copy_of(Id id) const { return varies(id) ? id_of(total(sums_[id])) : copies_[id]; }

  Id id_of(const Value& value) const { return recording_.id(value, "gathered"); }

  const Graph& from_;
  Range gradients_;
  Graph to_;
  graph::Recording recording_;
  graph::Dependence depends_;
  std::vector<int> uses_;
  std::vector<Id> copies_;  // of nodes that do not depend on the gradients
  std::vector<Sum> sums_;   // of nodes that do
};

}  // namespace

Graph gathered(const Graph& vjp, Range gradients) { return Gathering(vjp, gradients).build(); }

}  // namespace spikeforge::autodiff
