#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/errors.h"
#include "csrc/neuron/surrogate.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <stdexcept>

namespace spikeforge::graph {
namespace {

// One function per operation, with the name of the operation. `if` and `?:` are intentional: the operands are scalars.
template <class F> struct Meaning {
  static F logical_or(F a, F b) { return a != 0 || b != 0; }
  static F logical_and(F a, F b) { return a != 0 && b != 0; }
  static F logical_not(F a) { return a == 0; }
  static F less(F a, F b) { return a < b; }
  static F less_equal(F a, F b) { return a <= b; }
  static F greater(F a, F b) { return a > b; }
  static F greater_equal(F a, F b) { return a >= b; }
  static F equal(F a, F b) { return a == b; }
  static F not_equal(F a, F b) { return a != b; }

  static F add(F a, F b) { return a + b; }
  static F subtract(F a, F b) { return a - b; }
  static F multiply(F a, F b) { return a * b; }
  static F divide(F a, F b) { return a / b; }
  static F neg(F x) { return -x; }
  static F abs(F x) { return std::abs(x); }
  static F sign(F x) { return F(x > 0) - F(x < 0); }
  static F reciprocal(F x) { return 1 / x; }
  static F square(F x) { return x * x; }
  static F sqrt(F x) { return std::sqrt(x); }
  static F rsqrt(F x) { return 1 / std::sqrt(x); }
  static F exp(F x) { return std::exp(x); }
  static F expm1(F x) { return std::expm1(x); }
  static F exp2(F x) { return std::exp2(x); }
  static F log(F x) { return std::log(x); }
  static F log1p(F x) { return std::log1p(x); }
  static F log2(F x) { return std::log2(x); }
  static F sin(F x) { return std::sin(x); }
  static F cos(F x) { return std::cos(x); }
  static F tan(F x) { return std::tan(x); }
  static F asin(F x) { return std::asin(x); }
  static F acos(F x) { return std::acos(x); }
  static F atan(F x) { return std::atan(x); }
  static F sinh(F x) { return std::sinh(x); }
  static F cosh(F x) { return std::cosh(x); }
  static F tanh(F x) { return std::tanh(x); }
  static F erf(F x) { return std::erf(x); }
  static F sigmoid(F x) { return 1 / (1 + std::exp(-x)); }
  static F softplus(F x) { return x > 20 ? x : std::log1p(std::exp(x)); }
  static F relu(F x) { return x < 0 ? 0 : x; }  // passes -0 and NaN on
  static F gelu(F x) { return x * F(.5) * (1 + std::erf(x * F(.70710678118654752440))); }
  static F silu(F x) { return x / (1 + std::exp(-x)); }
  static F floor(F x) { return std::floor(x); }
  static F ceil(F x) { return std::ceil(x); }
  static F round(F x) { return std::nearbyint(x); }
  static F trunc(F x) { return std::trunc(x); }

  static F pow(F x, F y) { return std::pow(x, y); }
  static F atan2(F y, F x) { return std::atan2(y, x); }
  static F fmod(F x, F y) { return std::fmod(x, y); }
  static F remainder(F x, F y) {
    const F rest = std::fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
  }
  static F minimum(F a, F b) { return std::isnan(a) || a < b ? a : b; }
  static F maximum(F a, F b) { return std::isnan(a) || a > b ? a : b; }
  static F leaky_relu(F x, F slope) { return x > 0 ? x : x * slope; }
  static F elu(F x, F alpha) { return x < 0 ? alpha * std::expm1(x) : x; }
  static F clamp(F x, F low, F high) {
    if (std::isnan(low) || std::isnan(high)) return low + high;
    const F above = x < low ? low : x;
    return above > high ? high : above;
  }
  static F lerp(F a, F b, F weight) {
    return std::abs(weight) < F(.5) ? a + weight * (b - a) : b - (b - a) * (1 - weight);
  }

  static F where(F condition, F a, F b) { return condition != 0 ? a : b; }
  static F select(F s, F a, F b) { return s == 1 ? a : b; }
  static F spike(F u, const Surrogate&) { return u >= 0; }
  static F spike_strict(F u, const Surrogate&) { return u > 0; }
  static F surrogate_gradient(F u, const Surrogate& surrogate) {
    if (!surrogate.kind) return 0;
    switch (*surrogate.kind) {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) \
  case SurrogateKind::name:                     \
    return Struct<F>(surrogate.args.data()).gradient(u);
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
    }
    return 0;
  }
  static F detach(F x) { return x; }
  static F add_gradient(F f, F, F) { return f; }
};

template <class F, class... Parameters> F call(F (*function)(Parameters...), const Node& node, std::span<const F> x) {
  if constexpr (std::is_same_v<void(Parameters...), void(F, const Surrogate&)>) {
    return function(x[0], node.surrogate);
  } else {
    const std::array<F, sizeof...(Parameters)> operands = [&] {
      std::array<F, sizeof...(Parameters)> copy;
      std::copy_n(x.begin(), copy.size(), copy.begin());
      return copy;
    }();
    return std::apply(function, operands);
  }
}

}  // namespace

template <class F> F evaluate_node(const Node& node, std::span<const F> operands) {
  switch (node.op) {
#define SPIKEFORGE_LEAF(name, result)
#define SPIKEFORGE_DRAW(name, ...) \
  case Op::name: throw std::logic_error("evaluate: a draw has no value without a seed");
// clang-format off
#define SPIKEFORGE_OP(name, ...) case Op::name: return call(Meaning<F>::name, node, operands);
#include "csrc/graph/ops.def"
      // clang-format on
    case Op::argument:
    case Op::constant:
    case Op::truth: break;
  }
  return static_cast<F>(node.number);
}

template <class F> std::vector<F> evaluate_nodes(const Graph& graph, std::span<const F> arguments) {
  if (arguments.size() != graph.argument_count())
    throw GraphError(fmt::format("a graph of {} arguments is given {}", graph.argument_count(), arguments.size()));
  std::vector<F> values;
  for (Id id = 0; id < graph.size(); ++id) {
    std::vector<F> operands;
    for (const Id operand : graph.operands(id)) operands.push_back(values[operand]);
    values.push_back(graph.is(id, Op::argument) ? arguments[id] : evaluate_node<F>(graph[id], operands));
  }
  return values;
}

template <class F> std::vector<F> evaluate(const Graph& graph, std::span<const F> arguments) {
  const std::vector<F> values = evaluate_nodes(graph, arguments);
  std::vector<F> results;
  for (const Id result : graph.results()) results.push_back(values[result]);
  return results;
}

template float evaluate_node(const Node&, std::span<const float>);
template double evaluate_node(const Node&, std::span<const double>);
template std::vector<float> evaluate_nodes(const Graph&, std::span<const float>);
template std::vector<double> evaluate_nodes(const Graph&, std::span<const double>);
template std::vector<float> evaluate(const Graph&, std::span<const float>);
template std::vector<double> evaluate(const Graph&, std::span<const double>);

}  // namespace spikeforge::graph
