// A number or a boolean of a neuron's equations, recorded from a C++ lambda. Operators and functions of Values do not
// compute: they add a node to the graph of the current trace (trace.h).
//
// A Value behaves like a tensor of torch with one element, and functions have torch's names and semantics. Plain
// numbers become constants. Intended differences:
//   if (v > 1)   does not compile: both branches are part of the graph, so write where(v > 1, a, b)
//   a && b       on Values is elementwise and evaluates both
// Functions are found through their arguments: no `using` is needed. Errors are GraphError.
#pragma once

#include "csrc/base/export.h"
#include "csrc/graph/graph.h"

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace spikeforge::graph {

class Recording;
class Value;

template <class T>
concept Number = std::is_arithmetic_v<T>;

// True for a type that is neither a Value nor convertible to bool: numbers are constants, and types such as an optional
// Value keep their operators.
template <class T>
concept Foreign = !std::is_same_v<T, Value> && !std::is_constructible_v<bool, const T&>;

// Adds a node to the current graph. Throws GraphError.
SPIKEFORGE_API Value apply(Op op, std::initializer_list<Value> operands, const Surrogate& surrogate = {});

// Returns the draw, made once for all steps. Throws GraphError if the value is not a draw.
SPIKEFORGE_API Value make_once(const Value& draw);

class SPIKEFORGE_API Value {
 public:
  // Creates a constant: a number or, from a bool, true or false.
  template <Number T>
  Value(T constant)  // NOLINT(google-explicit-constructor)
      : number_(static_cast<double>(constant)), is_truth_(std::is_same_v<T, bool>) {}

  template <Foreign T>
  Value(const T&) = delete;  // not a Value or a number: pass a tensor as an input, a state or a parameter of the trace

  explicit operator bool() const = delete;  // the value is not known yet: write where(condition, a, b) instead of if

  friend Value operator-(const Value& x) { return apply(Op::neg, {x}); }
  friend Value operator+(const Value& a, const Value& b) { return apply(Op::add, {a, b}); }
  friend Value operator-(const Value& a, const Value& b) { return apply(Op::subtract, {a, b}); }
  friend Value operator*(const Value& a, const Value& b) { return apply(Op::multiply, {a, b}); }
  friend Value operator/(const Value& a, const Value& b) { return apply(Op::divide, {a, b}); }
  Value& operator+=(const Value& b) { return *this = *this + b; }
  Value& operator-=(const Value& b) { return *this = *this - b; }
  Value& operator*=(const Value& b) { return *this = *this * b; }
  Value& operator/=(const Value& b) { return *this = *this / b; }

  friend Value operator<(const Value& a, const Value& b) { return apply(Op::less, {a, b}); }
  friend Value operator<=(const Value& a, const Value& b) { return apply(Op::less_equal, {a, b}); }
  friend Value operator>(const Value& a, const Value& b) { return apply(Op::greater, {a, b}); }
  friend Value operator>=(const Value& a, const Value& b) { return apply(Op::greater_equal, {a, b}); }
  friend Value operator==(const Value& a, const Value& b) { return apply(Op::equal, {a, b}); }
  friend Value operator!=(const Value& a, const Value& b) { return apply(Op::not_equal, {a, b}); }

  friend Value operator!(const Value& c) { return apply(Op::logical_not, {c}); }
  friend Value operator&&(const Value& a, const Value& b) { return apply(Op::logical_and, {a, b}); }
  friend Value operator||(const Value& a, const Value& b) { return apply(Op::logical_or, {a, b}); }
  friend Value operator&&(bool a, const Value& b) { return Value(a) && b; }
  friend Value operator&&(const Value& a, bool b) { return a && Value(b); }
  friend Value operator||(bool a, const Value& b) { return Value(a) || b; }
  friend Value operator||(const Value& a, bool b) { return a || Value(b); }

  // abs(x), exp(x), pow(x, y), minimum(x, y), clamp(x, min, max), ...: the functions of ops.def.
#define SPIKEFORGE_OP(...)
#define SPIKEFORGE_UNARY(name) \
  friend Value name(const Value& x) { return apply(Op::name, {x}); }
#define SPIKEFORGE_BINARY(name) \
  friend Value name(const Value& x, const Value& y) { return apply(Op::name, {x, y}); }
#define SPIKEFORGE_TERNARY(name) \
  friend Value name(const Value& x, const Value& y, const Value& z) { return apply(Op::name, {x, y, z}); }
#define SPIKEFORGE_DEFAULTED(name, second) \
  friend Value name(const Value& x, const Value& y = second) { return apply(Op::name, {x, y}); }
#include "csrc/graph/ops.def"

  // The name that neuron/surrogate.h uses. As a single operation, its derivative does not overflow.
  friend Value logistic(const Value& x) { return sigmoid(x); }

  friend Value where(const Value& condition, const Value& a, const Value& b) {
    return apply(Op::where, {condition, a, b});
  }

  // Returns 1 if u >= 0, else 0; the derivative is that of the surrogate: spike(v - 1, surrogate::atan(2)).
  friend Value spike(const Value& u, const Surrogate& surrogate) { return apply(Op::spike, {u}, surrogate); }
  // Returns 1 if u > 0, else 0.
  friend Value spike_strict(const Value& u, const Surrogate& surrogate) {
    return apply(Op::spike_strict, {u}, surrogate);
  }
  // The same with a custom surrogate, given by its derivative at u: spike(v - 1, [](Value u) { return 1 / square(1 +
  // abs(u)); }).
  template <std::invocable<Value> Derivative> friend Value spike(const Value& u, Derivative&& derivative) {
    return apply(Op::add_gradient, {spike(u, Surrogate{}), u, std::forward<Derivative>(derivative)(u)});
  }
  template <std::invocable<Value> Derivative> friend Value spike_strict(const Value& u, Derivative&& derivative) {
    return apply(Op::add_gradient, {spike_strict(u, Surrogate{}), u, std::forward<Derivative>(derivative)(u)});
  }
  // Returns a surrogate's derivative at u, as a value. Its derivative is the surrogate's second derivative.
  friend Value surrogate_gradient(const Value& u, const Surrogate& surrogate) {
    return apply(Op::surrogate_gradient, {u}, surrogate);
  }

  // Returns a where the spike s is 1, else b: a reset that is exact even at infinity. Its gradient through s is that of
  // s a + (1 - s) b; select(detach(s), a, b) stops it.
  friend Value select(const Value& s, const Value& a, const Value& b) { return apply(Op::select, {s, a, b}); }

  // Returns the draw x, made once for all steps: draw_once(bernoulli(.5)) is a mask that is the same in all steps.
  friend Value draw_once(const Value& x) { return make_once(x); }

  // Returns x, with the derivative 0.
  friend Value detach(const Value& x) { return apply(Op::detach, {x}); }

  // Returns f, with the derivative d with respect to x, and the derivative 0 with respect to all other values. More
  // pairs x, d may follow. The derivatives may depend on any values; they are not differentiated.
  //   Value y = custom_gradient(round(x), x, 1);  // straight through
  template <class... Rest>
  friend Value custom_gradient(const Value& f, const Value& x, const Value& d, const Rest&... rest) {
    static_assert(sizeof...(rest) % 2 == 0, "custom_gradient(f, x, d, ...) takes pairs after f: a value, a derivative");
    const std::initializer_list<Value> pairs = {x, d, rest...};
    Value value = detach(f);
    for (const Value* pair = pairs.begin(); pair != pairs.end(); pair += 2)
      value = apply(Op::add_gradient, {value, pair[0], pair[1]});
    return value;
  }

 private:
  friend class Recording;

  Value(std::uint64_t recording, Id id) : recording_(recording), id_(id) {}

  std::uint64_t recording_ = 0;  // the recording that it belongs to; 0: a constant that is not yet in a graph
  Id id_ = 0;
  double number_ = 0;
  bool is_truth_ = false;
};

// Random numbers, drawn separately for each neuron and step; each call is a separate draw. They are constants for
// differentiation. Argument-dependent lookup does not find them without a Value: write spikeforge::normal().
inline Value normal() { return apply(Op::normal, {}); }
inline Value uniform() { return apply(Op::uniform, {}); }  // above 0 and below 1
// Returns 1 with this probability, else 0.
inline Value bernoulli(const Value& probability) { return apply(Op::bernoulli, {probability}); }
inline Value poisson(const Value& rate) { return apply(Op::poisson, {rate}); }

// During its lifetime, Values created on this thread become nodes of `graph`. Recordings may be nested: only the
// innermost one records, and Values of different recordings cannot be combined.
class SPIKEFORGE_API Recording {
 public:
  explicit Recording(Graph& graph);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Returns the current recording. Throws GraphError if there is none; the message names `function`.
  static Recording& current(std::string_view function);

  Graph& graph() const { return graph_; }
  Value value(Id id) const { return {serial_, id}; }
  // Returns the node of a value; a constant is added to the graph. Throws GraphError for a Value of another recording.
  Id id(const Value& value, std::string_view function) const;

 private:
  Graph& graph_;
  std::uint64_t serial_;
  Recording* outer_;
};

}  // namespace spikeforge::graph
