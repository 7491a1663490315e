// Surrogate derivatives of the step function Θ, each with its primitive.
//
// `gradient(x)` replaces Θ'(x) in the backward pass, x = H - v_threshold. `primitive(x)` is its integral: it replaces Θ
// itself if an operator is run with `spiking=False`, which makes the whole operator smooth. Primitives
// that approximate Θ have primitive(0) = 1/2; the others (super_spike, fast_sigmoid, zenke_super_spike, leaky_k_relu,
// fake_numerical_gradient, log_tailed_relu, nonzero_sign_log_abs, straight_through, triangular, spike_rate_escape) have
// primitive(0) = 0.
//
// Gradients may use fast_exp and fast_divide, in forms without cancellation: e / (1 + e)^2 rather than s (1 - s).
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {

constexpr int max_surrogate_args = 4;

// For a spiking forward pass, which needs no surrogate.
template <class F> struct NoSurrogate {
  SPIKEFORGE_FN explicit NoSurrogate(const double*) {}
  SPIKEFORGE_FN F gradient(F) const { return F(0); }
  SPIKEFORGE_FN F primitive(F) const { return F(0); }
};

// Returns alpha * sigma'(alpha x), in a form that is even in x, so that exp never overflows.
template <class F> SPIKEFORGE_FN F sigmoid_slope(F alpha, F x) {
  const F e = fast_exp(-alpha, abs(x));
  return fast_divide(alpha * e, square(F(1) + e));
}

template <class F> SPIKEFORGE_FN F logistic(F x) { return F(1) / (F(1) + exp(-x)); }

// The base of the surrogates whose only argument is alpha.
template <class F> struct WithAlpha {
  SPIKEFORGE_FN explicit WithAlpha(const double* args) : alpha(args[0]) {}

 protected:
  F alpha;
};

template <class F> struct Sigmoid : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return sigmoid_slope(alpha, x); }
  SPIKEFORGE_FN F primitive(F x) const { return logistic(alpha * x); }
};

template <class F> struct Atan : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const {
    const F scaled = F(1.57079632679489661923) * alpha * x;
    return fast_divide(F(.5) * alpha, fma(scaled, scaled, F(1)));
  }
  SPIKEFORGE_FN F primitive(F x) const {
    return F(.31830988618379067154) * atan(F(1.57079632679489661923) * alpha * x) + F(.5);
  }
};

template <class F> struct PiecewiseQuadratic : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return max(alpha - square(alpha) * abs(x), F(0)); }
  SPIKEFORGE_FN F primitive(F x) const {
    const F inner = alpha * x - F(.5) * square(alpha) * abs(x) * x + F(.5);
    return select(abs(x) < F(1) / alpha, inner, select(x < F(0), F(0), F(1)));
  }
};

template <class F> struct PiecewiseExp : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return F(.5) * alpha * fast_exp(-alpha, abs(x)); }
  SPIKEFORGE_FN F primitive(F x) const {
    const F tail = F(.5) * exp(-alpha * abs(x));
    return select(x < F(0), tail, F(1) - tail);
  }
};

template <class F> struct SoftSign : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return fast_divide(F(.5) * alpha, square(F(1) + alpha * abs(x))); }
  SPIKEFORGE_FN F primitive(F x) const { return F(.5) * (alpha * x / (F(1) + alpha * abs(x)) + F(1)); }
};

template <class F> struct SuperSpike : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return fast_divide(alpha, square(abs(x) + F(1))); }
  SPIKEFORGE_FN F primitive(F x) const { return alpha * x / (F(1) + abs(x)); }
};

template <class F> struct Erf : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return F(.56418958354775628695) * alpha * fast_exp(-square(alpha), square(x)); }
  SPIKEFORGE_FN F primitive(F x) const { return F(.5) * erfc(-alpha * x); }
};

template <class F> struct PiecewiseLeakyRelu {
  SPIKEFORGE_FN explicit PiecewiseLeakyRelu(const double* args) : w(args[0]), c(args[1]) {}
  SPIKEFORGE_FN F gradient(F x) const { return select(abs(x) < w, F(.5) / w, c); }
  SPIKEFORGE_FN F primitive(F x) const {
    const F inner = F(.5) * x / w + F(.5);
    const F outer = select(x < F(0), c * (x + w), c * (x - w) + F(1));
    return select(abs(x) < w, inner, outer);
  }

 private:
  F w, c;
};

template <class F> struct S2nn {
  SPIKEFORGE_FN explicit S2nn(const double* args) : alpha(args[0]), beta(args[1]) {}
  SPIKEFORGE_FN F gradient(F x) const {
    return select(x < F(0), sigmoid_slope(alpha, x), fast_divide(beta, abs(x) + F(1)));
  }
  SPIKEFORGE_FN F primitive(F x) const {
    return select(x < F(0), logistic(alpha * x), beta * log(abs(x) + F(1)) + F(.5));
  }

 private:
  F alpha, beta;
};

template <class F> struct QPseudoSpike : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return pow(F(1) + F(2) * abs(x) / (alpha - F(1)), -alpha); }
  SPIKEFORGE_FN F primitive(F x) const {
    const F tail = F(.5) * pow(F(1) + F(2) * abs(x) / (alpha - F(1)), F(1) - alpha);
    return select(x < F(0), tail, F(1) - tail);
  }
};

template <class F> struct LeakyKRelu {
  SPIKEFORGE_FN explicit LeakyKRelu(const double* args) : leak(args[0]), k(args[1]) {}
  SPIKEFORGE_FN F gradient(F x) const { return select(x >= F(0), k, leak); }
  SPIKEFORGE_FN F primitive(F x) const { return select(x >= F(0), k, leak) * x; }

 private:
  F leak, k;
};

template <class F> struct FakeNumericalGradient : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return min(F(1) / abs(x), alpha); }
  SPIKEFORGE_FN F primitive(F x) const {
    const F size = alpha * abs(x);
    const F tail = F(1) + log(max(size, F(1)));
    return select(size < F(1), alpha * x, select(x < F(0), -tail, tail));
  }
};

template <class F> struct LogTailedRelu : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return select(x <= F(0), alpha, F(1) / max(x, F(1))); }
  SPIKEFORGE_FN F primitive(F x) const { return select(x <= F(0), alpha * x, min(x, F(1)) + log(max(x, F(1)))); }
};

template <class F> struct NonzeroSignLogAbs : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return fast_divide(alpha, F(1) + alpha * abs(x)); }
  SPIKEFORGE_FN F primitive(F x) const {
    const F size = log(alpha * abs(x) + F(1));
    return select(x < F(0), -size, size);
  }
};

// The first n - 1 odd harmonics of a square wave.
template <class F> struct SquarewaveFourier {
  SPIKEFORGE_FN explicit SquarewaveFourier(const double* args) : n(int(args[0])), period(args[1]) {}
  SPIKEFORGE_FN F gradient(F x) const {
    const F turns = F(2) * x / period;  // in units of π
    F sum = F(0);
    SPIKEFORGE_ROLLED
    for (int i = 1; i < n; ++i) sum = sum + cospi(F(2 * i - 1) * turns);
    return F(4) / period * sum;
  }
  SPIKEFORGE_FN F primitive(F x) const {
    const F turns = F(2) * x / period;
    F sum = F(0);
    SPIKEFORGE_ROLLED
    for (int i = 1; i < n; ++i) sum = sum + sinpi(F(2 * i - 1) * turns) / F(2 * i - 1);
    return F(.5) + F(.63661977236758134308) * sum;
  }

 private:
  int n;
  F period;
};

template <class F> struct Rect : WithAlpha<F> {
  using WithAlpha<F>::WithAlpha, WithAlpha<F>::alpha;
  SPIKEFORGE_FN F gradient(F x) const { return select(abs(x) < F(.5) / alpha, alpha, F(0)); }
  SPIKEFORGE_FN F primitive(F x) const { return max(min(alpha * x + F(.5), F(1)), F(0)); }
};

template <class F> struct FastSigmoid {
  SPIKEFORGE_FN explicit FastSigmoid(const double* args) : slope(args[0]) {}
  SPIKEFORGE_FN F gradient(F x) const { return fast_divide(F(1), square(F(1) + slope * abs(x))); }
  SPIKEFORGE_FN F primitive(F x) const { return x / (F(1) + slope * abs(x)); }

 private:
  F slope;
};

// The same derivative, with the name and the steepness of its author.
template <class F> struct ZenkeSuperSpike : FastSigmoid<F> {
  SPIKEFORGE_FN explicit ZenkeSuperSpike(const double* args) : FastSigmoid<F>(args) {}
};

template <class F> struct StraightThrough {
  SPIKEFORGE_FN explicit StraightThrough(const double*) {}
  SPIKEFORGE_FN F gradient(F) const { return F(1); }
  SPIKEFORGE_FN F primitive(F x) const { return x; }
};

template <class F> struct Triangular {
  SPIKEFORGE_FN explicit Triangular(const double* args) : threshold(args[0]) {}
  SPIKEFORGE_FN F gradient(F x) const { return select(x < F(0), threshold, -threshold); }
  SPIKEFORGE_FN F primitive(F x) const { return -threshold * abs(x); }

 private:
  F threshold;
};

// Its maximum is at x = 1.
template <class F> struct SpikeRateEscape {
  SPIKEFORGE_FN explicit SpikeRateEscape(const double* args) : beta(args[0]), slope(args[1]) {}
  SPIKEFORGE_FN F gradient(F x) const { return slope * fast_exp(-beta, abs(x - F(1))); }
  SPIKEFORGE_FN F primitive(F x) const {
    const F tail = exp(-beta * abs(x - F(1)));
    return slope / beta * (select(x < F(1), tail, F(2) - tail) - exp(-beta));
  }

 private:
  F beta, slope;
};

// Return the density of the normal distribution with mean 0 and standard deviation 1 / (width √2), and its integral
// from 0.
template <class F> SPIKEFORGE_FN F bell(F width, F x) {
  return F(.56418958354775628695) * width * fast_exp(-square(width), square(x));
}
template <class F> SPIKEFORGE_FN F half_bell(F width, F x) { return F(.5) - F(.5) * erfc(width * x); }

template <class F> struct Gaussian {
  SPIKEFORGE_FN explicit Gaussian(const double* args) : width(F(.70710678118654752440) / F(args[0])), gamma(args[1]) {}
  SPIKEFORGE_FN F gradient(F x) const { return gamma * bell(width, x); }
  SPIKEFORGE_FN F primitive(F x) const { return F(.5) + gamma * half_bell(width, x); }

 private:
  F width, gamma;
};

// A bell of deviation sigma and weight 1 + h, minus two bells of deviation s sigma and weight h, at sigma and at
// -sigma.
template <class F> struct MultiGaussian {
  SPIKEFORGE_FN explicit MultiGaussian(const double* args)
      : sigma(args[0]), h(args[1]), s(args[2]), gamma(args[3]), width(F(.70710678118654752440) / sigma) {}
  SPIKEFORGE_FN F gradient(F x) const {
    const F sides = bell(width / s, abs(x) - sigma) + bell(width / s, abs(x) + sigma);
    return gamma * ((F(1) + h) * bell(width, x) - h * sides);
  }
  SPIKEFORGE_FN F primitive(F x) const {
    const F sides = half_bell(width / s, x - sigma) + half_bell(width / s, x + sigma);
    return F(.5) + gamma * ((F(1) + h) * half_bell(width, x) - h * sides);
  }

 private:
  F sigma, h, s, gamma, width;
};

}  // namespace spikeforge
