// The operations of a cell: the arithmetic of one step, with the same spelling for the host compiler, NVRTC and nvcc.
// C++17.
//
// Cells are templates over the arithmetic type F. For float and double the functions below are found by ordinary
// look-up; a SIMD type has separate functions, found by argument-dependent look-up. Comparisons return a mask (`bool`
// for scalars), which is an operand of only `select`, `both`, `either` and `inverse`. SPIKEFORGE_ROLLED precedes a loop
// that is not unrolled, to save registers. SPIKEFORGE_PLAIN_FN is SPIKEFORGE_FN for a function that is not a template.
#pragma once

#if defined(__CUDACC__)
#define SPIKEFORGE_FN __device__ __forceinline__
#define SPIKEFORGE_PLAIN_FN SPIKEFORGE_FN
#define SPIKEFORGE_ROLLED _Pragma("unroll 1")
#else
#define SPIKEFORGE_FN
#define SPIKEFORGE_PLAIN_FN inline
#define SPIKEFORGE_ROLLED _Pragma("GCC unroll 1")
#include <cmath>
#endif

namespace spikeforge {

constexpr double log2_e = 1.44269504088896340736;

#if defined(__CUDACC__)

SPIKEFORGE_FN float select(bool condition, float a, float b) { return condition ? a : b; }
SPIKEFORGE_FN double select(bool condition, double a, double b) { return condition ? a : b; }
SPIKEFORGE_FN bool both(bool a, bool b) { return a && b; }
SPIKEFORGE_FN bool either(bool a, bool b) { return a || b; }
SPIKEFORGE_FN bool inverse(bool a) { return !a; }

SPIKEFORGE_FN float abs(float x) { return ::fabsf(x); }
SPIKEFORGE_FN double abs(double x) { return ::fabs(x); }

// CUDA's single-precision functions have the suffix f.
#define SPIKEFORGE_FUNCTION(name)                            \
  SPIKEFORGE_FN float name(float x) { return ::name##f(x); } \
  SPIKEFORGE_FN double name(double x) { return ::name(x); }
SPIKEFORGE_FUNCTION(sqrt)
SPIKEFORGE_FUNCTION(exp)
SPIKEFORGE_FUNCTION(expm1)
SPIKEFORGE_FUNCTION(exp2)
SPIKEFORGE_FUNCTION(log)
SPIKEFORGE_FUNCTION(log1p)
SPIKEFORGE_FUNCTION(log2)
SPIKEFORGE_FUNCTION(sin)
SPIKEFORGE_FUNCTION(cos)
SPIKEFORGE_FUNCTION(tan)
SPIKEFORGE_FUNCTION(sinpi)
SPIKEFORGE_FUNCTION(cospi)
SPIKEFORGE_FUNCTION(asin)
SPIKEFORGE_FUNCTION(acos)
SPIKEFORGE_FUNCTION(atan)
SPIKEFORGE_FUNCTION(sinh)
SPIKEFORGE_FUNCTION(cosh)
SPIKEFORGE_FUNCTION(tanh)
SPIKEFORGE_FUNCTION(erf)
SPIKEFORGE_FUNCTION(erfc)
SPIKEFORGE_FUNCTION(floor)
SPIKEFORGE_FUNCTION(ceil)
SPIKEFORGE_FUNCTION(rint)
SPIKEFORGE_FUNCTION(trunc)
#undef SPIKEFORGE_FUNCTION

#define SPIKEFORGE_FUNCTION(name)                                        \
  SPIKEFORGE_FN float name(float x, float y) { return ::name##f(x, y); } \
  SPIKEFORGE_FN double name(double x, double y) { return ::name(x, y); }
SPIKEFORGE_FUNCTION(pow)
SPIKEFORGE_FUNCTION(atan2)
SPIKEFORGE_FUNCTION(fmod)
#undef SPIKEFORGE_FUNCTION

// Returns a b + c, rounded once or twice: only for derivatives, never for values that are compared with a threshold.
SPIKEFORGE_FN float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
SPIKEFORGE_FN double fma(double a, double b, double c) { return ::fma(a, b, c); }

// Functions only for derivatives of surrogates: a few ulp less accurate, and several times faster. Subnormal numbers
// are treated as 0, which saves the instructions that would scale them. fast_exp(factor, x) is e^(factor x), where the
// factor is the same in all steps.
SPIKEFORGE_FN float fast_exp(float factor, float x) {
  // (factor log2_e) x would need another register (T = 1024, N = 2^15, backward: 1.13 of the bytes' time, this 1.08).
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(float(log2_e) * (factor * x)));
  return y;
}
SPIKEFORGE_FN float fast_divide(float a, float b) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
  return a * reciprocal;
}
SPIKEFORGE_FN double fast_exp(double factor, double x) { return ::exp(factor * x); }
SPIKEFORGE_FN double fast_divide(double a, double b) { return a / b; }

#else

inline float select(bool condition, float a, float b) { return condition ? a : b; }
inline double select(bool condition, double a, double b) { return condition ? a : b; }
inline bool both(bool a, bool b) { return a && b; }
inline bool either(bool a, bool b) { return a || b; }
inline bool inverse(bool a) { return !a; }

using std::abs;
using std::acos;
using std::asin;
using std::atan;
using std::atan2;
using std::ceil;
using std::cos;
using std::cosh;
using std::erf;
using std::erfc;
using std::exp;
using std::exp2;
using std::expm1;
using std::floor;
using std::fmod;
using std::log;
using std::log1p;
using std::log2;
using std::pow;
using std::rint;
using std::round;
using std::sin;
using std::sinh;
using std::sqrt;
using std::tan;
using std::tanh;
using std::trunc;

// sin(πx) and cos(πx). |x| may be large, so whole turns are subtracted first, exactly.
template <class F> F within_a_turn(F x) { return x - F(2) * round(F(.5) * x); }
template <class F> F sinpi(F x) { return sin(F(3.14159265358979323846) * within_a_turn(x)); }
template <class F> F cospi(F x) { return cos(F(3.14159265358979323846) * within_a_turn(x)); }

template <class F> F fma(F a, F b, F c) { return a * b + c; }
template <class F> F fast_exp2(F x) { return exp2(x); }
// For vectors, a multiplication costs more than a register.
template <class F> F fast_exp(F factor, F x) { return fast_exp2(factor * F(log2_e) * x); }
template <class F> F fast_divide(F a, F b) { return a / b; }

#endif

// The same on every device: min and max return a NaN of the first argument, and ignore a NaN of the second.
template <class F> SPIKEFORGE_FN F min(F a, F b) { return select(b < a, b, a); }
template <class F> SPIKEFORGE_FN F max(F a, F b) { return select(a < b, b, a); }

template <class F> SPIKEFORGE_FN F square(F x) { return x * x; }

}  // namespace spikeforge
