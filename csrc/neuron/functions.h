// Functions of torch that only custom neurons use, exact including NaN, signs of zero and halves. They match
// graph/evaluate.cpp, and are written with the functions of portable.h.
#pragma once

#include "csrc/neuron/portable.h"
#include "csrc/neuron/surrogate.h"

namespace spikeforge {

template <class F> SPIKEFORGE_FN F infinity() { return F(1) / F(0); }
template <class F> SPIKEFORGE_FN F not_a_number() { return F(0) / F(0); }

template <class F> SPIKEFORGE_FN auto is_nan(F x) { return inverse(x == x); }

template <class F> SPIKEFORGE_FN F sign(F x) { return select(F(0) < x, F(1), select(x < F(0), F(-1), F(0))); }

template <class F> SPIKEFORGE_FN F minimum(F a, F b) { return select(either(is_nan(a), a < b), a, b); }
template <class F> SPIKEFORGE_FN F maximum(F a, F b) { return select(either(is_nan(a), b < a), a, b); }
template <class F> SPIKEFORGE_FN F clamp(F x, F low, F high) {
  const F above = select(x < low, low, x);
  const F between = select(high < above, high, above);
  return select(either(is_nan(low), is_nan(high)), low + high, between);
}

template <class F> SPIKEFORGE_FN F remainder(F x, F y) {
  const F rest = fmod(x, y);
  const auto other_side = either(both(rest < F(0), F(0) < y), both(F(0) < rest, y < F(0)));
  return select(other_side, rest + y, rest);
}

template <class F> SPIKEFORGE_FN F lerp(F a, F b, F weight) {
  return select(abs(weight) < F(.5), a + weight * (b - a), b - (b - a) * (F(1) - weight));
}

template <class F> SPIKEFORGE_FN F softplus(F x) { return select(F(20) < x, x, log1p(exp(x))); }
template <class F> SPIKEFORGE_FN F relu(F x) { return select(x < F(0), F(0), x); }
template <class F> SPIKEFORGE_FN F leaky_relu(F x, F slope) { return select(F(0) < x, x, x * slope); }
template <class F> SPIKEFORGE_FN F elu(F x, F alpha) { return select(x < F(0), alpha * expm1(x), x); }
template <class F> SPIKEFORGE_FN F gelu(F x) { return x * F(.5) * (F(1) + erf(x * F(.70710678118654752440))); }
template <class F> SPIKEFORGE_FN F silu(F x) { return x / (F(1) + exp(-x)); }

// Returns the derivative of a surrogate with these arguments.
template <template <class> class Surrogate, class F>
SPIKEFORGE_FN F surrogate_gradient(F x, double first = 0, double second = 0, double third = 0, double fourth = 0) {
  const double args[max_surrogate_args] = {first, second, third, fourth};
  return Surrogate<F>(args).gradient(x);
}

}  // namespace spikeforge
