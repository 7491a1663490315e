// Random cells that use every operation, to test properties of all neurons. A seed gives the same cell on every
// platform. On a failure, shrink the cell and print it with its seed.
#pragma once

#include "csrc/graph/cell.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace spikeforge::test {

// Gives the same numbers with every standard library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 0x632be59bd9b4e019) {}

  std::uint64_t bits() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits() % n); }
  bool chance(double probability) { return uniform(0, 1) < probability; }
  double uniform(double low, double high) { return low + (high - low) * (double(bits() >> 11) * 0x1p-53); }
  template <class T> const T& of(const std::vector<T>& list) { return list[below(list.size())]; }

 private:
  std::uint64_t state_;
};

struct RandomStyle {
  int operations = 24;     // attempts; folded and unused operations are not counted again
  bool is_tame = true;     // most operands are moved into the range where the function is finite
  bool has_names = false;  // some nodes have names
};

class RandomCell {
 public:
  RandomCell(std::uint64_t seed, RandomStyle style) : dice_(seed), style_(style), cell_(signature()) {}

  graph::Cell make() {
    for (graph::Id id = 0; id < graph().argument_count(); ++id) numbers_.push_back(id);
    for (int i = 0; i < 3; ++i) numbers_.push_back(graph().constant(constant()));
    for (int i = 0; i < style_.operations; ++i) add_node();
    std::vector<graph::Id> outputs, next_states;
    for (std::size_t i = 0, n = 1 + dice_.below(3); i < n; ++i) outputs.push_back(recent(numbers_));
    for (std::size_t i = 0; i < cell_.state_count(); ++i) next_states.push_back(recent(numbers_));
    cell_.finish(outputs, next_states);
    return std::move(cell_);
  }

 private:
  using Id = graph::Id;
  using Op = graph::Op;
  graph::Graph& graph() { return cell_.graph(); }

  static std::string numbered(std::string stem, std::size_t i) { return stem.append(std::to_string(i)); }

  graph::Signature signature() {
    graph::Signature s;
    s.name = "random";
    const auto count = [&](std::size_t least) { return least + dice_.below(3); };
    for (std::size_t i = 0, n = count(1); i < n; ++i) s.inputs.push_back(numbered("x", i));
    for (std::size_t i = 0, n = count(0); i < n; ++i)
      s.states.emplace_back(numbered("v", i), dice_.chance(.3) ? constant() : 0);
    for (std::size_t i = 0, n = count(0); i < n; ++i) s.params.push_back(numbered("p", i));
    return s;
  }

  double constant() {
    static const std::vector<double> usual = {0, 1, -1, .5, 2, -2, .1, 1e-3, 3.25, 20};
    static const std::vector<double> wild = {-0., HUGE_VAL, -HUGE_VAL, std::nan(""), 1e300, 5e-324, 1e22, -.1};
    if (!style_.is_tame && dice_.chance(.2)) return dice_.of(wild);
    return dice_.chance(.5) ? dice_.of(usual) : dice_.uniform(-3, 3);
  }

  Id recent(const std::vector<Id>& list) {
    const std::size_t newest = list.size() - 1;
    return list[dice_.chance(.6) ? newest - dice_.below(std::min<std::size_t>(list.size(), 6))
                                 : dice_.below(list.size())];
  }

  Id number() { return recent(numbers_); }
  Id boolean() {
    if (booleans_.empty() || dice_.chance(.3)) {
      static const std::vector<Op> comparisons = {Op::less,          Op::less_equal, Op::greater,
                                                  Op::greater_equal, Op::equal,      Op::not_equal};
      booleans_.push_back(dice_.chance(.05) ? graph().truth(dice_.chance(.5))
                                            : graph().make(dice_.of(comparisons), {number(), number()}));
    }
    return recent(booleans_);
  }

  Id positive(Id x) { return graph().make(Op::add, {graph().make(Op::abs, {x}), graph().constant(.5)}); }
  Id bounded(Id x) { return graph().make(Op::tanh, {x}); }

  // In this range most functions are finite and not large.
  std::vector<Id> tamed(Op op, std::vector<Id> x) {
    if (!style_.is_tame) return x;
    switch (op) {
      case Op::log:
      case Op::log2:
      case Op::sqrt:
      case Op::rsqrt:
      case Op::reciprocal: return {positive(x[0])};
      case Op::exp:
      case Op::expm1:
      case Op::exp2:
      case Op::sinh:
      case Op::cosh:
      case Op::tan: return {bounded(x[0])};
      case Op::log1p:
      case Op::asin:
      case Op::acos: return {graph().make(Op::multiply, {bounded(x[0]), graph().constant(.9)})};
      case Op::divide:
      case Op::fmod:
      case Op::remainder: return {x[0], positive(x[1])};
      case Op::pow: return {positive(x[0]), bounded(x[1])};
      case Op::atan2: return {positive(x[0]), x[1]};
      case Op::clamp: return {x[0], x[1], graph().make(Op::add, {x[1], positive(x[2])})};
      default: return x;
    }
  }

  graph::Surrogate surrogate() {
    if (dice_.chance(.1)) return {};
    const auto known = graph::surrogate_descriptions();
    const graph::SurrogateDescription& one = known[dice_.below(known.size())];
    std::vector<double> numbers;  // the defaults, limited to slopes for which finite differences are accurate
    for (const graph::SurrogateArgument& argument : one.args) numbers.push_back(std::min(argument.default_value, 4.));
    return graph::make_surrogate(one.name, numbers);
  }

  // surrogate_gradient has no derivative, so it is used only where none is needed.
  Id derivative(Id x) { return dice_.chance(.5) ? number() : graph().make(Op::surrogate_gradient, {x}, surrogate()); }

  void add_node() {
    const Op op = static_cast<Op>(dice_.below(op_count));
    const graph::OpInfo& known = info(op);
    if (known.form == graph::Form::leaf) {
      numbers_.push_back(graph().constant(constant()));
      return;
    }
    std::vector<Id> x;
    for (int i = 0; i < known.arity; ++i)
      x.push_back(known.operands[static_cast<std::size_t>(i)] == graph::Kind::number ? number() : boolean());
    if (op == Op::surrogate_gradient) {
      x = {graph().make(op, x, surrogate())};
      keep(graph().make(Op::detach, x));
      return;
    }
    if (op == Op::add_gradient) x[2] = derivative(x[1]);
    if (op == Op::select && dice_.chance(.7)) x[0] = graph().make(Op::spike, {x[0]}, surrogate());
    x = tamed(op, std::move(x));
    keep(graph().make(op, x, known.form == graph::Form::spike ? surrogate() : graph::Surrogate{}));
  }

  void keep(Id id) {
    (graph().kind(id) == graph::Kind::number ? numbers_ : booleans_).push_back(id);
    if (style_.has_names && dice_.chance(.2) && id >= graph().argument_count())
      graph().set_name(id, numbered(dice_.chance(.3) ? "t" : "name_", names_++));
  }

  static constexpr std::size_t op_count = [] {
    std::size_t count = 0;
#define SPIKEFORGE_DRAW(...)  // draws are the last operations, and have no value without a seed
#define SPIKEFORGE_OP(...) ++count;
#include "csrc/graph/ops.def"
    return count;
  }();

  Dice dice_;
  RandomStyle style_;
  graph::Cell cell_;
  std::vector<Id> numbers_, booleans_;
  std::size_t names_ = 1;
};

inline graph::Cell random_cell(std::uint64_t seed, RandomStyle style = {}) { return RandomCell(seed, style).make(); }

// Returns numbers for all arguments.
inline std::vector<double> random_arguments(const graph::Graph& graph, std::uint64_t seed) {
  Dice dice(seed ^ 0xa5a5a5a5);
  std::vector<double> arguments;
  for (std::size_t i = 0; i < graph.argument_count(); ++i) arguments.push_back(dice.uniform(-2, 2));
  return arguments;
}

// Returns the cell with node `from` replaced by the earlier node `to`.
inline graph::Cell with_replaced(const graph::Cell& cell, graph::Id from, graph::Id to) {
  const graph::Graph& old = cell.graph();
  graph::Cell smaller(cell.signature());
  std::vector<graph::Id> copies(old.size());
  const std::vector<bool> live = live_nodes(old);
  for (graph::Id id = 0; id < old.size(); ++id) {
    if (id < old.argument_count())
      copies[id] = id;
    else if (id == from)
      copies[id] = copies[to];
    else if (live[id])
      copies[id] = copy_node(smaller.graph(), old, id, copies);
  }
  std::vector<graph::Id> outputs, next_states;
  for (std::size_t i = 0; i < cell.output_count(); ++i) outputs.push_back(copies[cell.output(i)]);
  for (std::size_t i = 0; i < cell.state_count(); ++i) next_states.push_back(copies[cell.next_state(i)]);
  smaller.finish(outputs, next_states);
  return smaller;
}

// Returns a smaller cell that still fails, for the failure message: replaces nodes by one of their operands while the
// cell still fails.
inline graph::Cell shrunk(graph::Cell cell, const std::function<bool(const graph::Cell&)>& fails) {
  const auto smaller = [&]() -> std::optional<graph::Cell> {
    const graph::Graph& g = cell.graph();
    const std::vector<bool> live = live_nodes(g);
    for (graph::Id id = static_cast<graph::Id>(g.size()); id-- > g.argument_count();) {
      if (!live[id]) continue;
      for (const graph::Id operand : g.operands(id)) {
        if (g.kind(operand) != g.kind(id)) continue;
        graph::Cell candidate = with_replaced(cell, id, operand);
        if (fails(candidate)) return candidate;
      }
    }
    return std::nullopt;
  };
  while (std::optional<graph::Cell> next = smaller()) cell = *std::move(next);
  return cell;
}

}  // namespace spikeforge::test
