#include "csrc/graph/internal/surrogate_values.h"
#include "csrc/neuron/surrogate.h"

namespace spikeforge::graph {
namespace {

// The result of a comparison, an operand of select only.
struct Mask {
  Value holds;
};

// A Value with the interface of an arithmetic type of neuron/portable.h: the select of Value requires a spike.
class Symbol {
 public:
  template <Number T> Symbol(T number) : value(number) {}  // NOLINT(google-explicit-constructor)
  explicit Symbol(const Value& value) : value(value) {}

  friend Symbol operator-(const Symbol& x) { return Symbol(-x.value); }
  friend Symbol operator+(const Symbol& a, const Symbol& b) { return Symbol(a.value + b.value); }
  friend Symbol operator-(const Symbol& a, const Symbol& b) { return Symbol(a.value - b.value); }
  friend Symbol operator*(const Symbol& a, const Symbol& b) { return Symbol(a.value * b.value); }
  friend Symbol operator/(const Symbol& a, const Symbol& b) { return Symbol(a.value / b.value); }
  friend Mask operator<(const Symbol& a, const Symbol& b) { return {a.value < b.value}; }
  friend Mask operator<=(const Symbol& a, const Symbol& b) { return {a.value <= b.value}; }
  friend Mask operator>=(const Symbol& a, const Symbol& b) { return {a.value >= b.value}; }
  friend Symbol select(const Mask& mask, const Symbol& a, const Symbol& b) {
    return Symbol(where(mask.holds, a.value, b.value));
  }

#define SPIKEFORGE_FUNCTION(name) \
  friend Symbol name(const Symbol& x) { return Symbol(name(x.value)); }
  SPIKEFORGE_FUNCTION(abs)
  SPIKEFORGE_FUNCTION(exp)
  SPIKEFORGE_FUNCTION(exp2)
  SPIKEFORGE_FUNCTION(log)
  SPIKEFORGE_FUNCTION(logistic)
  SPIKEFORGE_FUNCTION(atan)
  SPIKEFORGE_FUNCTION(sin)
  SPIKEFORGE_FUNCTION(cos)
  SPIKEFORGE_FUNCTION(round)
#undef SPIKEFORGE_FUNCTION
  friend Symbol pow(const Symbol& x, const Symbol& y) { return Symbol(pow(x.value, y.value)); }
  friend Symbol erfc(const Symbol& x) { return Symbol(1 - erf(x.value)); }

  Value value;
};

// Returns what(s) for the surrogate's struct s.
template <class What> Value with_struct(const Surrogate& surrogate, What&& what) {
  switch (*surrogate.kind) {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) \
  case SurrogateKind::name:                     \
    return what(Struct<Symbol>(surrogate.args.data())).value;
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
  }
  return 0;
}

}  // namespace

Value surrogate_derivative(const Value& u, const Surrogate& surrogate) {
  if (!surrogate.kind) return 0;
  return with_struct(surrogate, [&](const auto& made) { return made.gradient(Symbol(u)); });
}

Value surrogate_primitive(const Value& u, const Surrogate& surrogate) {
  if (!surrogate.kind) return 0;
  return with_struct(surrogate, [&](const auto& made) { return made.primitive(Symbol(u)); });
}

}  // namespace spikeforge::graph
