// The random numbers of a neuron: the bits of the generator, and the distributions computed from them. C++17.
//
// A counter determines the bits, so that nothing is stored, and the backward pass, other schedules and parts of a
// sequence draw the same numbers: Philox's key is the seed, and its counter
//
//   word 0   the neuron's index / 4, bits 0 to 31      word 2   the step, bits 0 to 31
//   word 1   bits 32 to 47; the stream << 16           word 3   bits 32 to 47; the draw's number << 16
//
// The neuron uses word index % 4: four neighbours share a call. In double precision, the same word of stream 1 is
// appended as the lower bits, so that float32 and float64 draw the same numbers up to the precision of float32. For
// draws that are made once, the step is 2^48 - 1.
#pragma once

#include "csrc/neuron/random.h"

namespace spikeforge {
#if defined(CPU_CAPABILITY)
inline namespace CPU_CAPABILITY {
#endif

using Word = unsigned;
using DoubleWord = unsigned long long;

// The counter of a neuron at a step.
struct Draws {
  DoubleWord key, four;  // the index / 4
  Word lane;             // the index % 4
  DoubleWord step;
};

constexpr DoubleWord step_of_once = (DoubleWord{1} << 48) - 1;

// Returns the words of four neighbours.
SPIKEFORGE_PLAIN_FN PhiloxWords words_of(DoubleWord key, DoubleWord four, DoubleWord step, bool once, unsigned draw,
                                         unsigned stream) {
  if (once) step = step_of_once;
  return philox({{static_cast<Word>(four), (static_cast<Word>(four >> 32) & 0xffffU) | (stream << 16),
                  static_cast<Word>(step), (static_cast<Word>(step >> 32) & 0xffffU) | (draw << 16)}},
                key);
}

SPIKEFORGE_PLAIN_FN Word chosen(const PhiloxWords& words, Word lane) {
  const Word even = lane < 2 ? words.word[0] : words.word[2], odd = lane < 2 ? words.word[1] : words.word[3];
  return lane % 2 == 0 ? even : odd;
}

// Computes the bits of a draw, as wide as F.
template <class F> struct DrawnBits;
template <> struct DrawnBits<float> {
  using type = Word;
  static SPIKEFORGE_FN Word of(const Draws& draws, bool once, unsigned draw) {
    return chosen(words_of(draws.key, draws.four, draws.step, once, draw, 0), draws.lane);
  }
};
template <> struct DrawnBits<double> {
  using type = DoubleWord;
  static SPIKEFORGE_FN DoubleWord of(const Draws& draws, bool once, unsigned draw) {
    return DoubleWord{DrawnBits<float>::of(draws, once, draw)} << 32 |
           chosen(words_of(draws.key, draws.four, draws.step, once, draw, 1), draws.lane);
  }
};
template <class F> SPIKEFORGE_FN typename DrawnBits<F>::type drawn_bits(const Draws& draws, bool once, unsigned draw) {
  return DrawnBits<F>::of(draws, once, draw);
}

SPIKEFORGE_PLAIN_FN Word high_word(Word bits) { return bits; }
SPIKEFORGE_PLAIN_FN Word high_word(DoubleWord bits) { return static_cast<Word>(bits >> 32); }

SPIKEFORGE_PLAIN_FN DoubleWord as_bits(double x) {
#if defined(__CUDACC__)
  return static_cast<DoubleWord>(__double_as_longlong(x));
#else
  DoubleWord bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

SPIKEFORGE_PLAIN_FN double as_double(DoubleWord bits) {
#if defined(__CUDACC__)
  return __longlong_as_double(static_cast<long long>(bits));
#else
  double x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

SPIKEFORGE_PLAIN_FN float nan_float() { return as_float(0x7fc00000U); }
SPIKEFORGE_PLAIN_FN double nan_double() { return as_double(0x7ff8000000000000ULL); }

// ---- functions with the same rounding on all devices ----

// Returns ln((1 + s) / (1 - s)) for |s| <= 0.172: 2 s (1 + s^2 / 3 + s^4 / 5 + ...).
SPIKEFORGE_PLAIN_FN double log_of_ratio(double s) {
  const double q = s * s;
  double sum = 1.0 / 25;
  sum = sum * q + 1.0 / 23;
  sum = sum * q + 1.0 / 21;
  sum = sum * q + 1.0 / 19;
  sum = sum * q + 1.0 / 17;
  sum = sum * q + 1.0 / 15;
  sum = sum * q + 1.0 / 13;
  sum = sum * q + 1.0 / 11;
  sum = sum * q + 1.0 / 9;
  sum = sum * q + 1.0 / 7;
  sum = sum * q + 1.0 / 5;
  sum = sum * q + 1.0 / 3;
  return 2 * s + 2 * s * (sum * q);
}

// ln 2 in two parts; multiples of the first are exact.
constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;

// Returns the logarithm of a normal number above 0.
SPIKEFORGE_PLAIN_FN double log_of(double x) {
  const DoubleWord bits = as_bits(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = as_double((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double e = exponent;
  return e * ln2_high + (e * ln2_low + log_of_ratio((m - 1) / (m + 1)));
}

// Returns e^x for -32 <= x <= 0.
SPIKEFORGE_PLAIN_FN double exp_of(double x) {
  const int n = static_cast<int>(x * log2_e - 0.5);
  const double r = x - n * ln2_high - n * ln2_low;  // |r| <= 0.35
  double sum = 1.0 / 13;
  SPIKEFORGE_ROLLED
  for (int k = 12; k > 0; --k) sum = (sum * r + 1) / k;
  return (sum * r + 1) * as_double(static_cast<DoubleWord>(1023 + n) << 52);
}

// ---- uniform and normal ----

// Returns a number above 0 and below 1.
SPIKEFORGE_PLAIN_FN double uniform_of(DoubleWord bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }

// Returns the normal quantile (Wichura, Applied Statistics 37, 1988, AS 241, PPND16: 16 digits) of a uniform number.
SPIKEFORGE_PLAIN_FN double normal_of(double u) {
  const double q = u - 0.5;
  if (abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q *
           (((((((2.5090809287301226727e+3 * r + 3.3430575583588128105e+4) * r + 6.7265770927008700853e+4) * r +
                4.5921953931549871457e+4) *
                   r +
               1.3731693765509461125e+4) *
                  r +
              1.9715909503065514427e+3) *
                 r +
             1.3314166789178437745e+2) *
                r +
            3.3871328727963666080e+0) /
           (((((((5.2264952788528545610e+3 * r + 2.8729085735721942674e+4) * r + 3.9307895800092710610e+4) * r +
                2.1213794301586595867e+4) *
                   r +
               5.3941960214247511077e+3) *
                  r +
              6.8718700749205790830e+2) *
                 r +
             4.2313330701600911252e+1) *
                r +
            1.0);
  }
  const double t = sqrt(-log_of(q < 0 ? u : 1.0 - u));
  double z = 0;
  if (t <= 5.0) {
    const double r = t - 1.6;
    z = (((((((7.74545014278341407640e-4 * r + 2.27238449892691845833e-2) * r + 2.41780725177450611770e-1) * r +
             1.27045825245236838258e+0) *
                r +
            3.64784832476320460504e+0) *
               r +
           5.76949722146069140550e+0) *
              r +
          4.63033784615654529590e+0) *
             r +
         1.42343711074968357734e+0) /
        (((((((1.05075007164441684324e-9 * r + 5.47593808499534494600e-4) * r + 1.51986665636164571966e-2) * r +
             1.48103976427480074590e-1) *
                r +
            6.89767334985100004550e-1) *
               r +
           1.67638483018380384940e+0) *
              r +
          2.05319162663775882187e+0) *
             r +
         1.0);
  } else {
    const double r = t - 5.0;
    z = (((((((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r + 1.24266094738807843860e-3) * r +
             2.65321895265761230930e-2) *
                r +
            2.96560571828504891230e-1) *
               r +
           1.78482653991729133580e+0) *
              r +
          5.46378491116411436990e+0) *
             r +
         6.65790464350110377720e+0) /
        (((((((2.04426310338993978564e-15 * r + 1.42151175831644588870e-7) * r + 1.84631831751005468180e-5) * r +
             7.86869131145613259100e-4) *
                r +
            1.48753612908506148525e-2) *
               r +
           1.36929880922735805310e-1) *
              r +
          5.99832206555887937690e-1) *
             r +
         1.0);
  }
  return q < 0 ? -z : z;
}

// ---- Poisson ----

// Returns Stirling's ln(k!) - (k + 1/2) ln k + k - ln(2 pi) / 2.
SPIKEFORGE_PLAIN_FN double stirling_error(double k) {
  if (k >= 16) {
    const double r = 1 / k, q = r * r;
    return r * (1.0 / 12 - q * (1.0 / 360 - q * (1.0 / 1260 - q * (1.0 / 1680 - q / 1188))));
  }
  double factorial = 1;
  SPIKEFORGE_ROLLED
  for (int i = 2; i <= static_cast<int>(k); ++i) factorial *= i;
  return log_of(factorial) - (k + 0.5) * log_of(k) + k - 0.918938533204672741780;
}

// Returns k ln(k / rate) + rate - k, accurately even if k is close to a large rate (Loader, 2000, "Fast and accurate
// computation of binomial probabilities").
SPIKEFORGE_PLAIN_FN double deviance(double k, double rate) {
  const double v = (k - rate) / (k + rate);
  if (abs(v) > 0.1) return k * log_of(k / rate) + rate - k;
  const double q = v * v;
  // k (ln((1 + v) / (1 - v)) - 2 v), without the difference.
  double sum = 1.0 / 19;
  for (int i = 17; i >= 3; i -= 2) sum = sum * q + 1.0 / i;
  return (k - rate) * v + 2 * k * v * q * sum;
}

SPIKEFORGE_PLAIN_FN double log_of_poisson(double k, double rate) {
  if (k < 1) return -rate;
  return -deviance(k, rate) - stirling_error(k) - 0.918938533204672741780 - 0.5 * log_of(k);
}

// Draws by inversion: sums the probabilities from 0 on, whose probability is `none`, exp_of(-rate). The sum ends when
// less than 2^-53 of u is left.
SPIKEFORGE_PLAIN_FN double inverted_poisson_of(double u, double rate, double none) {
  double p = none, k = 0;
  while (u > p && (k < rate || p > 0x1p-56)) {
    u -= p;
    k += 1;
    p *= rate / k;
  }
  return k;
}

// Draws by transformed rejection (Hörmann, 1993, "The transformed rejection method for generating Poisson random
// variables", PTRS). An iteration accepts with a probability of at least 0.7; each iteration uses words of Philox at a
// counter of the bits and the iteration.
SPIKEFORGE_PLAIN_FN double large_poisson_of(DoubleWord bits, double rate) {
  constexpr DoubleWord own_key = 0x9e3779b97f4a7c15ULL;
  constexpr unsigned most_turns = 128;
  const double b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), squeeze = 0.9277 - 3.6224 / (b - 2);
  SPIKEFORGE_ROLLED
  for (unsigned turn = 0; turn < most_turns; ++turn) {
    const PhiloxWords w = philox({{static_cast<Word>(bits), static_cast<Word>(bits >> 32), turn, 0}}, own_key);
    const double u = uniform_of(DoubleWord{w.word[0]} << 32 | w.word[1]) - 0.5;
    const double v = uniform_of(DoubleWord{w.word[2]} << 32 | w.word[3]);
    const double from_edge = 0.5 - abs(u);
    const double k = floor((2 * a / from_edge + b) * u + rate + 0.43);
    if (from_edge >= 0.07 && v <= squeeze) return k;
    if (k < 0 || (from_edge < 0.013 && v > from_edge)) continue;
    if (log_of(v * inverse_alpha / (a / (from_edge * from_edge) + b)) <= log_of_poisson(k, rate)) return k;
  }
  return floor(rate);
}

constexpr double least_of_rejection = 16;  // smaller rates use inversion

SPIKEFORGE_PLAIN_FN double poisson_of(DoubleWord bits, double rate) {
  constexpr double most = 1.7976931348623157e308;
  if (!(0 <= rate && rate <= most)) return nan_double();
  return rate < least_of_rejection ? inverted_poisson_of(uniform_of(bits), rate, exp_of(-rate))
                                   : large_poisson_of(bits, rate);
}

// ---- the distributions, by their names in neuron text ----

// Returns the normal quantile of uniform_of(bits) = u, within 1e-6: x G(-ln(1 - x^2)) with x = 2 u - 1 (Giles, 2012,
// "Approximating the erfinv function"). One polynomial G suffices for all numbers of 23 bits, so the code needs no
// division, square root or branch: in the time of a copy, a GPU can execute about 56 instructions per number. Both
// polynomials minimise the relative error.
SPIKEFORGE_PLAIN_FN float normal(Word bits) {
  const float x = as_float(bits >> 9 | 0x40000000U) - 3.0F + 0x1p-23F;
  const float rest = fused(-x, x, 1.0F);  // 1 - x^2, rounded once, also if it is small
  // rest = m 2^n with m between the roots of 1/2 and 2.
  const Word n_of_23_bits = (as_bits(rest) - 0x3f3504f3U) & 0xff800000U;
  const float m_less_1 = as_float(as_bits(rest) - n_of_23_bits) - 1.0F;
  const float minus_log_of_m =
      fused_polynomial(m_less_1, -1.00000453F, 0.499902159F, -0.332580268F, 0.25403291F, -0.220558837F, 0.142919004F);
  constexpr float middle = 4.0F, minus_ln2_by_23_bits = -8.26295832e-08F;
  const float w = fused(minus_log_of_m, m_less_1,
                        fused(static_cast<float>(static_cast<int>(n_of_23_bits)), minus_ln2_by_23_bits, -middle));
  return x * fused_polynomial(w, 2.62871122F, 0.322942644F, -0.0102136275F, -0.000288735318F, 0.000168732775F,
                              -2.19246886e-05F, 5.9227807e-07F, 2.59092531e-07F, -4.08630427e-08F, 1.32954503e-09F,
                              2.93134655e-10F, -3.9823235e-11F, 2.03687306e-12F, -3.93641622e-14F);
}
SPIKEFORGE_PLAIN_FN double normal(DoubleWord bits) { return normal_of(uniform_of(bits)); }
SPIKEFORGE_PLAIN_FN float uniform(Word bits) { return uniform_of(bits); }
SPIKEFORGE_PLAIN_FN double uniform(DoubleWord bits) { return uniform_of(bits); }

// Returns 1 if the bits are below p * 2^32, rounded up to an integer: rounding loses no draw even for a tiny p.
SPIKEFORGE_PLAIN_FN float bernoulli(Word bits, float p) {
  if (!(0.0F <= p && p <= 1.0F)) return nan_float();
  const float scaled = p * 4294967296.0F;
  const auto whole = static_cast<DoubleWord>(scaled);
  return bits < whole + (static_cast<float>(whole) < scaled ? 1U : 0U) ? 1.0F : 0.0F;
}
SPIKEFORGE_PLAIN_FN double bernoulli(DoubleWord bits, double p) {
  if (!(0.0 <= p && p <= 1.0)) return nan_double();
  return uniform_of(bits) < p ? 1.0 : 0.0;
}

template <class Bits, class F> SPIKEFORGE_FN F poisson(Bits first, Bits second, F rate) {
  return static_cast<F>(poisson_of(DoubleWord{high_word(first)} << 32 | high_word(second), static_cast<double>(rate)));
}

#if defined(CPU_CAPABILITY)
}  // namespace CPU_CAPABILITY
#endif
}  // namespace spikeforge
