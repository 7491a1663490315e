#include "csrc/autodiff/rules.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/lower.h"
#include "csrc/graph/internal/surrogate_values.h"

#include <numbers>
#include <vector>

namespace spikeforge::autodiff {

// ---- adjoints ----

namespace {

bool same(const graph::Value& a, const graph::Value& b) {
  const graph::Recording& recording = graph::Recording::current("vjp");
  return recording.id(a, "vjp") == recording.id(b, "vjp");
}

}  // namespace

graph::Value Adjoint::value() const { return mask_ ? graph::apply(graph::Op::where, {*mask_, value_, 0}) : value_; }

Adjoint Adjoint::operator+(const Adjoint& other) const {
  if (mask_ && other.mask_) {
    if (same(*mask_, *other.mask_)) return {value_ + other.value_, mask_};
    // The operands are the two branches of one `where`.
    if (same(!*mask_, *other.mask_)) return Adjoint(graph::apply(graph::Op::where, {*mask_, value_, other.value_}));
  }
  return Adjoint(value() + other.value());
}

Adjoint Adjoint::where(const graph::Value& condition) const {
  return {value_, mask_ ? *mask_ && condition : condition};
}

// ---- derivatives ----

namespace rules {

using graph::Op;
using graph::Value;
using std::nullopt;

const Contributions constant_everywhere{};

// Returns the number of a constant; std::nullopt for other values.
std::optional<double> constant_of(const Value& value) {
  const graph::Recording& recording = graph::Recording::current("vjp");
  const graph::Node& node = recording.graph()[recording.id(value, "vjp")];
  return node.op == Op::constant ? std::optional(node.number) : nullopt;
}

// Arithmetic.
Contributions add(const Site& s) { return {s.g, s.g}; }
Contributions subtract(const Site& s) { return {s.g, -s.g}; }
Contributions multiply(const Site& s) { return {s.g * s.y, s.g * s.x}; }
Contributions divide(const Site& s) {
  const Adjoint share = s.g / s.y;
  return {share, -(share * s.z)};
}
Contributions neg(const Site& s) { return {-s.g}; }
Contributions abs(const Site& s) { return {s.g * sign(s.x)}; }
Contributions reciprocal(const Site& s) { return {-(s.g * square(s.z))}; }
Contributions square(const Site& s) { return {s.g * (2 * s.x)}; }
Contributions lerp(const Site& s) { return {s.g * (1 - s.w), s.g * s.w, s.g * (s.y - s.x)}; }

// Powers, exponentials, logarithms.
Contributions pow(const Site& s) {
  const Adjoint by_exponent = (s.g * (s.z * log(s.x))).where(!(s.x == 0 && s.y >= 0));
  const std::optional<double> exponent = constant_of(s.y);
  if (!exponent) return {(s.g * (s.y * pow(s.x, s.y - 1))).where(s.y != 0), by_exponent};
  if (*exponent == 0) return constant_everywhere;
  if (*exponent == 1) return {s.g};
  if (*exponent == 2) return {s.g * (2 * s.x)};
  return {s.g * (s.y * pow(s.x, *exponent - 1))};
}
Contributions sqrt(const Site& s) { return {s.g / (2 * s.z)}; }
Contributions rsqrt(const Site& s) { return {s.g * (-.5 * (s.z * square(s.z)))}; }
Contributions exp(const Site& s) { return {s.g * s.z}; }
Contributions expm1(const Site& s) { return {s.g * (s.z + 1)}; }
Contributions exp2(const Site& s) { return {s.g * (s.z * std::numbers::ln2)}; }
Contributions log(const Site& s) { return {s.g / s.x}; }
Contributions log1p(const Site& s) { return {s.g / (s.x + 1)}; }
Contributions log2(const Site& s) { return {s.g / (s.x * std::numbers::ln2)}; }

// Trigonometric and hyperbolic.
Contributions sin(const Site& s) { return {s.g * cos(s.x)}; }
Contributions cos(const Site& s) { return {s.g * -sin(s.x)}; }
Contributions tan(const Site& s) { return {s.g * (1 + square(s.z))}; }
Contributions asin(const Site& s) { return {s.g * rsqrt(1 - square(s.x))}; }
Contributions acos(const Site& s) { return {s.g * -rsqrt(1 - square(s.x))}; }
Contributions atan(const Site& s) { return {s.g / (square(s.x) + 1)}; }
Contributions atan2(const Site& s) {
  const Adjoint share = (s.g / (square(s.x) + square(s.y))).where(!(s.x == 0 && s.y == 0));
  return {share * s.y, share * -s.x};
}
Contributions sinh(const Site& s) { return {s.g * cosh(s.x)}; }
Contributions cosh(const Site& s) { return {s.g * sinh(s.x)}; }
Contributions tanh(const Site& s) { return {s.g * (1 - square(s.z))}; }

// Activations.
Contributions erf(const Site& s) { return {s.g * (2 * std::numbers::inv_sqrtpi * exp(-square(s.x)))}; }
Contributions sigmoid(const Site& s) { return {s.g * (s.z * (1 - s.z))}; }
Contributions softplus(const Site& s) { return {s.g * where(s.x > 20, 1, sigmoid(s.x))}; }
Contributions relu(const Site& s) { return {s.g.where(!(s.x <= 0))}; }
Contributions leaky_relu(const Site& s) { return {s.g * where(s.x > 0, 1, s.y), (s.g * s.x).where(!(s.x > 0))}; }
Contributions elu(const Site& s) {
  return {s.g * where(s.x <= 0, s.y * exp(s.x), 1), (s.g * expm1(s.x)).where(s.x <= 0)};
}
Contributions gelu(const Site& s) {
  const double density = std::numbers::inv_sqrtpi / std::numbers::sqrt2;  // of the normal distribution, at 0
  const Value below = .5 * (1 + erf(s.x * (1 / std::numbers::sqrt2)));
  return {s.g * (below + s.x * (density * exp(-.5 * square(s.x))))};
}
Contributions silu(const Site& s) {
  const Value gate = sigmoid(s.x);
  return {s.g * (gate * (1 + s.x * (1 - gate)))};
}

// The derivative of a step function is 0 wherever it exists.
Contributions sign(const Site&) { return constant_everywhere; }
Contributions floor(const Site&) { return constant_everywhere; }
Contributions ceil(const Site&) { return constant_everywhere; }
Contributions round(const Site&) { return constant_everywhere; }
Contributions trunc(const Site&) { return constant_everywhere; }
Contributions fmod(const Site& s) { return {s.g, s.g * -trunc(s.x / s.y)}; }
Contributions remainder(const Site& s) { return {s.g, s.g * -floor(s.x / s.y)}; }

// Choices. Equal operands share the gradient.
Contributions minimum(const Site& s) {
  const Adjoint shared = s.g * where(s.x == s.y, .5, 1);
  return {shared.where(!(s.x > s.y)), shared.where(!(s.x < s.y))};
}
Contributions maximum(const Site& s) {
  const Adjoint shared = s.g * where(s.x == s.y, .5, 1);
  return {shared.where(!(s.x < s.y)), shared.where(!(s.x > s.y))};
}
// If x < min == max, torch assigns the gradient to no operand; here min receives it.
Contributions clamp(const Site& s) {
  return {s.g.where(s.x >= s.y && s.x <= s.w), s.g.where(s.x < s.y && s.y <= s.w), s.g.where(s.x > s.w || s.w < s.y)};
}
Contributions where(const Site& s) { return {nullopt, s.g.where(s.x), s.g.where(!s.x)}; }
// The derivative of s y + (1 - s) w.
Contributions select(const Site& s) {
  const graph::Recording& recording = graph::Recording::current("vjp");
  const Value fires = recording.value(graph::fires(recording.graph(), recording.id(s.x, "vjp")));
  return {s.g * (s.y - s.w), s.g.where(fires), s.g.where(!fires)};
}
Contributions less(const Site&) { return constant_everywhere; }
Contributions less_equal(const Site&) { return constant_everywhere; }
Contributions greater(const Site&) { return constant_everywhere; }
Contributions greater_equal(const Site&) { return constant_everywhere; }
Contributions equal(const Site&) { return constant_everywhere; }
Contributions not_equal(const Site&) { return constant_everywhere; }
Contributions logical_and(const Site&) { return constant_everywhere; }
Contributions logical_or(const Site&) { return constant_everywhere; }
Contributions logical_not(const Site&) { return constant_everywhere; }

// Spikes, and operations that define derivatives.
Contributions spike(const Site& s) {
  if (!s.surrogate.kind) return constant_everywhere;
  return {s.g * surrogate_gradient(s.x, s.surrogate)};
}
Contributions spike_strict(const Site& s) { return spike(s); }
Contributions surrogate_gradient(const Site& s) {
  if (!s.surrogate.kind) return constant_everywhere;
  const graph::Graph again = slope_of(s.surrogate);
  const graph::Recording& recording = graph::Recording::current("vjp");
  const graph::Id arguments[] = {recording.id(s.x, "vjp"), recording.graph().constant(1)};
  const std::vector<graph::Id> slope = graph::copy_into(recording.graph(), again, arguments, again.results());
  return {s.g * recording.value(slope[0])};
}
Contributions detach(const Site&) { return constant_everywhere; }
Contributions add_gradient(const Site& s) { return {s.g, s.g * s.w}; }

Contributions argument(const Site&) { return constant_everywhere; }
Contributions constant(const Site&) { return constant_everywhere; }
Contributions truth(const Site&) { return constant_everywhere; }

// Draws: the derivative of an expectation is not the derivative of the drawn number.
Contributions normal(const Site&) { return constant_everywhere; }
Contributions uniform(const Site&) { return constant_everywhere; }
Contributions bernoulli(const Site&) { return constant_everywhere; }
Contributions poisson(const Site&) { return constant_everywhere; }

}  // namespace rules

graph::Graph slope_of(const graph::Surrogate& surrogate) {
  constexpr std::size_t most_nodes = 1 << 16;
  graph::Graph derivative(most_nodes);
  derivative.argument("u");
  {
    graph::Recording recording(derivative);
    derivative.add_result(recording.id(graph::surrogate_derivative(recording.value(0), surrogate), "vjp"));
  }
  return vjp(derivative);
}

Contributions contributions(graph::Op op, const Site& site) {
  switch (op) {
// clang-format off
#define SPIKEFORGE_OP(name, ...) case graph::Op::name: return rules::name(site);
#include "csrc/graph/ops.def"
    // clang-format on
  }
  return {};
}

}  // namespace spikeforge::autodiff
