// The operations of traced cells on vectors: the interpreter's instructions, and the statements of a compiled tape. It
// includes no header of the graph, since it is also embedded in the library as text, for the compiler of compiled
// tapes.
//
// The definitions for a scalar in graph/evaluate.cpp also apply to vectors: + - * / sqrt, comparisons and selections
// have the same bits, and functions are those of at::vec, within a few ulp. A boolean is a mask, all ones or all zeros.
#pragma once

#include "csrc/cpu/vec.h"
#include "csrc/neuron/draws.h"
#include "csrc/neuron/surrogate.h"

#include <ATen/cpu/vec/vec.h>

#include <math.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// The multiple of elements to which rows are padded: a multiple of the vectors of every type, and of cache lines.
constexpr std::int64_t granule = 32;

// A row of a tile's values. With `step` 0 instead of 1, a single vector is used for the whole row.
template <class T> struct Row {
  T* data;
  std::int64_t step;
};

template <class T> struct Operations {
  using V = at::vec::Vectorized<T>;

  static V mask(bool value) {
    const V zero(T(0));
    return value ? zero == zero : zero;
  }
  static V choose(V condition, V a, V b) { return V::blendv(b, a, condition); }

  static V logical_or(V a, V b) { return a | b; }
  static V logical_and(V a, V b) { return a & b; }
  static V logical_not(V a) { return a ^ mask(true); }
  static V less(V a, V b) { return a < b; }
  static V less_equal(V a, V b) { return a <= b; }
  static V greater(V a, V b) { return a > b; }
  static V greater_equal(V a, V b) { return a >= b; }
  static V equal(V a, V b) { return a == b; }
  static V not_equal(V a, V b) { return a != b; }

  static V add(V a, V b) { return a + b; }
  static V subtract(V a, V b) { return a - b; }
  static V multiply(V a, V b) { return a * b; }
  static V divide(V a, V b) { return a / b; }
  static V neg(V x) { return x.neg(); }
  static V abs(V x) { return x.abs(); }
  static V sign(V x) {
    const V zero(T(0)), one(T(1));
    return choose(x > zero, one, choose(x < zero, V(T(-1)), zero));
  }
  static V reciprocal(V x) { return V(T(1)) / x; }
  static V square(V x) { return x * x; }
  static V sqrt(V x) { return x.sqrt(); }
  static V rsqrt(V x) { return V(T(1)) / x.sqrt(); }
  static V exp(V x) { return x.exp(); }
  static V expm1(V x) { return x.expm1(); }
  static V exp2(V x) { return x.exp2(); }
  static V log(V x) { return x.log(); }
  static V log1p(V x) { return x.log1p(); }
  static V log2(V x) { return x.log2(); }
  static V sin(V x) { return x.sin(); }
  static V cos(V x) { return x.cos(); }
  static V tan(V x) { return x.tan(); }
  static V asin(V x) { return x.asin(); }
  static V acos(V x) { return x.acos(); }
  static V atan(V x) { return x.atan(); }
  static V sinh(V x) { return x.sinh(); }
  static V cosh(V x) { return x.cosh(); }
  static V tanh(V x) { return x.tanh(); }
  static V erf(V x) {
    // at::vec's erf is inaccurate for small float arguments.
    if constexpr (std::is_same_v<T, float>)
      return x.map(::erff);
    else
      return x.erf();
  }
  static V sigmoid(V x) { return V(T(1)) / (V(T(1)) + x.neg().exp()); }
  static V softplus(V x) { return choose(x > V(T(20)), x, x.exp().log1p()); }
  static V relu(V x) { return choose(x < V(T(0)), V(T(0)), x); }
  static V gelu(V x) { return x * V(T(.5)) * (V(T(1)) + erf(x * V(T(.70710678118654752440)))); }
  static V silu(V x) { return x / (V(T(1)) + x.neg().exp()); }
  static V floor(V x) { return x.floor(); }
  static V ceil(V x) { return x.ceil(); }
  static V round(V x) { return x.round(); }
  static V trunc(V x) { return x.trunc(); }

  static V pow(V x, V y) { return x.pow(y); }
  static V atan2(V y, V x) { return y.atan2(x); }
  // Returns the exact remainder; that of at::vec is inexact for a large x / y.
  static V fmod(V x, V y) {
    T a[V::size()], b[V::size()];
    x.store(a);
    y.store(b);
    for (int i = 0; i < V::size(); ++i) {
      if constexpr (std::is_same_v<T, float>)
        a[i] = ::fmodf(a[i], b[i]);
      else
        a[i] = ::fmod(a[i], b[i]);
    }
    return V::loadu(a);
  }
  static V remainder(V x, V y) {
    const V zero(T(0));
    const V rest = fmod(x, y);
    const V differ = (rest < zero) ^ (y < zero);
    return choose((rest != zero) & differ, rest + y, rest);
  }
  static V minimum(V a, V b) { return choose((a != a) | (a < b), a, b); }
  static V maximum(V a, V b) { return choose((a != a) | (a > b), a, b); }
  static V leaky_relu(V x, V slope) { return choose(x > V(T(0)), x, x * slope); }
  static V elu(V x, V alpha) { return choose(x < V(T(0)), alpha * x.expm1(), x); }
  static V clamp(V x, V low, V high) {
    const V above = choose(x < low, low, x);
    const V between = choose(above > high, high, above);
    return choose((low != low) | (high != high), low + high, between);
  }
  static V lerp(V a, V b, V weight) {
    const V difference = b - a;
    return choose(weight.abs() < V(T(.5)), a + weight * difference, b - difference * (V(T(1)) - weight));
  }

  // Returns a b + c, rounded once if the processor supports it.
  static V multiply_add(V a, V b, V c) { return at::vec::fmadd(a, b, c); }
  static V subtract_product(V a, V b, V c) { return at::vec::fmadd(a.neg(), b, c); }
  static V product_less(V a, V b, V c) { return at::vec::fmadd(a, b, c.neg()); }

  static V where(V condition, V a, V b) { return choose(condition, a, b); }
  static V select(V s, V a, V b) { return choose(s == V(T(1)), a, b); }
  static V detach(V x) { return x; }
  static V add_gradient(V f, V, V) { return f; }

  // The type of random bits, as wide as a number.
  using Bits = typename DrawnBits<T>::type;
  static V normal(V bits) {
    return drawn([](Bits b) { return spikeforge::normal(b); }, bits);
  }
  static V uniform(V bits) {
    return drawn([](Bits b) { return spikeforge::uniform(b); }, bits);
  }
  static V bernoulli(V bits, V p) {
    T given[V::size()];
    p.store(given);
    return drawn([&](Bits b, int i) { return spikeforge::bernoulli(b, given[i]); }, bits);
  }
  static V poisson(V first, V second, V rate) {
    T given[V::size()], others[V::size()];
    rate.store(given);
    second.store(others);
    return drawn([&](Bits b, int i) { return spikeforge::poisson(b, __builtin_bit_cast(Bits, others[i]), given[i]); },
                 first);
  }

  template <class Law> static V drawn(Law law, V bits) {
    T numbers[V::size()];
    bits.store(numbers);
    for (int i = 0; i < V::size(); ++i) {
      const Bits b = __builtin_bit_cast(Bits, numbers[i]);
      if constexpr (std::is_invocable_v<Law, Bits, int>)
        numbers[i] = law(b, i);
      else
        numbers[i] = law(b);
    }
    return V::loadu(numbers);
  }
};

template <class T, template <class> class Surrogate>
at::vec::Vectorized<T> surrogate_gradient(at::vec::Vectorized<T> x, const double* args) {
  using V = at::vec::Vectorized<T>;
  if constexpr (sizeof(V) == sizeof(Vec<T>))
    return __builtin_bit_cast(V, Surrogate<Vec<T>>(args).gradient(__builtin_bit_cast(Vec<T>, x)));
  T numbers[V::size()];
  x.store(numbers);
  for (int i = 0; i < V::size(); i += Vec<T>::lanes) {
    Vec<T> value = read<Vec<T>>(numbers + i);
    value = Surrogate<Vec<T>>(args).gradient(value);
    std::memcpy(numbers + i, static_cast<const void*>(&value), sizeof value);
  }
  return V::loadu(numbers);
}

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
