// The SIMD arithmetic type of cells on the CPU, with the functions of portable.h, found by argument-dependent look-up.
// Arithmetic, comparisons and selections use the compiler's vector types, which it can fuse and hoist; functions are
// those of at::vec. Compiled once for each instruction set; everything is in a namespace with the name of the set, so
// that no two of them share a symbol.
#pragma once

#include "csrc/neuron/portable.h"

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

#if defined(CPU_CAPABILITY_AVX512)
constexpr int vector_bytes = 64;
#elif defined(CPU_CAPABILITY_AVX2)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;  // SSE2 and NEON; GCC splits wider vectors badly
#endif

// A vector type of the compiler with `count` lanes of T. (The attribute is ignored if it depends on T directly.)
template <class T, int count> struct LanesOf { typedef T type __attribute__((vector_size(sizeof(T) * count))); };
template <class T, int count> using Lanes = typename LanesOf<T, count>::type;

// Lanes of all ones or all zeros, the result of comparisons.
template <class Bits> struct Mask { Bits bits; };

template <class T> struct Vec {
  static constexpr int lanes = vector_bytes / sizeof(T);
  using Simd = Lanes<T, lanes>;
  using Bits = Lanes<std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>, lanes>;

  Simd value;

  Vec() = default;
  Vec(double x) : value(static_cast<T>(x) - Simd{}) {}
  Vec(Simd x) : value(x) {}

  friend Vec operator+(Vec a, Vec b) { return a.value + b.value; }
  friend Vec operator-(Vec a, Vec b) { return a.value - b.value; }
  friend Vec operator*(Vec a, Vec b) { return a.value * b.value; }
  friend Vec operator/(Vec a, Vec b) { return a.value / b.value; }
  friend Vec operator-(Vec a) { return -a.value; }
  friend Mask<Bits> operator<(Vec a, Vec b) { return {a.value < b.value}; }
  friend Mask<Bits> operator<=(Vec a, Vec b) { return {a.value <= b.value}; }
  friend Mask<Bits> operator>=(Vec a, Vec b) { return {a.value >= b.value}; }

  friend Vec select(Mask<Bits> mask, Vec a, Vec b) { return mask.bits ? a.value : b.value; }
  friend Vec abs(Vec a) { return Simd(Bits(a.value) & ~Bits(Vec(-0.).value)); }

#define SPIKEFORGE_FROM_ATEN(function)                                                           \
  friend Vec function(Vec a) {                                                                   \
    return a.apply([](Native x) { return x.function(); }, [](T x) { return std::function(x); }); \
  }
  SPIKEFORGE_FROM_ATEN(exp)
  SPIKEFORGE_FROM_ATEN(exp2)
  SPIKEFORGE_FROM_ATEN(log)
  SPIKEFORGE_FROM_ATEN(sin)
  SPIKEFORGE_FROM_ATEN(cos)
  SPIKEFORGE_FROM_ATEN(atan)
  SPIKEFORGE_FROM_ATEN(erfc)
#undef SPIKEFORGE_FROM_ATEN
  friend Vec round(Vec a) {
    return a.apply([](Native x) { return x.round(); }, [](T x) { return std::nearbyint(x); });
  }
  friend Vec pow(Vec a, Vec b) {
    if constexpr (has_native) {
      return from_native(a.native().pow(b.native()));
    } else {
      for (int i = 0; i < lanes; ++i) a.value[i] = std::pow(a.value[i], b.value[i]);
      return a;
    }
  }

  // Returns a * b + c, rounded once if the processor supports it. Only for gradients: the forward pass has the same
  // bits everywhere.
  friend Vec fma(Vec a, Vec b, Vec c) {
    if constexpr (has_native) {
      return from_native(at::vec::fmadd(a.native(), b.native(), c.native()));
    } else {
      return a * b + c;
    }
  }

  // Returns 2^x, for derivatives of surrogates, whose arguments are not positive. 2^x = 2^n 2^f, where n is the
  // multiple of 1/16 (AVX-512) or the integer (otherwise) nearest to x. Adding 1.5 * 2^19 or 1.5 * 2^23 rounds x to n,
  // and leaves n in the low bits, which are then added to the exponent. The polynomial for 2^f is 1 at 0, and minimises
  // the maximum relative error: 4e-7 and 9e-8. Results are at least 2^-125.
  friend Vec fast_exp2(Vec x) {
    if constexpr (std::is_same_v<T, float>) {
#if defined(CPU_CAPABILITY_AVX512)
      // Multiplications limit the derivative of the sigmoid: 28.6 cycles per vector of LIF's vjp with a polynomial of
      // degree 5 and products instead of additions (Zen 4). Entry i is 2^(i/16), minus the part that i itself adds to
      // the exponent.
      alignas(64) static constexpr std::uint32_t sixteenths[16] = {
          0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
          0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};
      x = Simd(_mm512_max_ps(Vec(-125).value, x.value));
      const Vec shift(786432);
      const Vec shifted = x + shift;
      const Vec f = x - (shifted - shift);
      const Bits root = Bits(_mm512_permutexvar_epi32(__m512i(shifted.value), _mm512_load_si512(sixteenths)));
      const Vec scale(Simd(root + (Bits(shifted.value) << 19)));
      return fma(scale * f, fma(Vec(.2402265069591), f, Vec(.6931878329833)), scale);
#else
      x = max(x, Vec(-125));
      const Vec shift(12582912);
      const Vec shifted = x + shift;
      const Vec f = x - (shifted - shift);
      Vec p = fma(Vec(.001326472731), f, Vec(.009671512991));
      p = fma(p, f, Vec(.05550733582));
      p = fma(p, f, Vec(.2402224243));
      p = fma(p, f, Vec(.6931470037));
      p = fma(p, f, Vec(1));
      return Simd(Bits(p.value) + (Bits(shifted.value) << 23));
#endif
    } else {
      return exp2(x);
    }
  }

 private:
  using Native = at::vec::Vectorized<T>;
  static constexpr bool has_native = sizeof(Native) == vector_bytes;  // else lane by lane, as in at::vec

  Native native() const { return __builtin_bit_cast(Native, value); }
  static Vec from_native(Native x) { return __builtin_bit_cast(Simd, x); }

  template <class OfNative, class OfLane> Vec apply(OfNative of_native, OfLane of_lane) const {
    if constexpr (has_native) {
      return from_native(of_native(native()));
    } else {
      Vec out;
      for (int i = 0; i < lanes; ++i) out.value[i] = of_lane(value[i]);
      return out;
    }
  }
};

// ---- rows: vectors from and to memory, converted between the stored type and the arithmetic's ----

template <class Value> Value read(const void* p) {
  Value value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T, class Stored> struct Conversion;

template <class T> struct Conversion<T, T> {
  static Vec<T> load(const T* p) { return read<typename Vec<T>::Simd>(p); }
  static auto stored(Vec<T> x) { return x.value; }
};

template <> struct Conversion<float, c10::BFloat16> {
  static constexpr int lanes = Vec<float>::lanes;
  using Words = Lanes<std::uint32_t, lanes>;
  using Halves = Lanes<std::uint16_t, lanes>;

  static Vec<float> load(const c10::BFloat16* p) { return Vec<float>::Simd(widen(read<Halves>(p)) << 16); }
  // Rounds to nearest, ties to even.
  static Halves stored(Vec<float> x) {
    const Words bits = Words(x.value);
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return narrow(x.value == x.value ? rounded : Words{} + 0x7fc0);
  }

 private:
  // GCC's conversions need four instructions instead of one.
#if defined(CPU_CAPABILITY_AVX512)
  static Words widen(Halves x) { return Words(_mm512_cvtepu16_epi32(__m256i(x))); }
  static Halves narrow(Words x) { return Halves(_mm512_cvtepi32_epi16(__m512i(x))); }
#elif defined(CPU_CAPABILITY_AVX2)
  static Words widen(Halves x) { return Words(_mm256_cvtepu16_epi32(__m128i(x))); }
  static Halves narrow(Words x) {
    const __m256i words = __m256i(x);
    return Halves(_mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
#else
  static Words widen(Halves x) { return __builtin_convertvector(x, Words); }
  static Halves narrow(Words x) { return __builtin_convertvector(x, Halves); }
#endif
};

template <> struct Conversion<float, c10::Half> {
#if defined(CPU_CAPABILITY_AVX512)
  static Vec<float> load(const c10::Half* p) { return _mm512_cvtph_ps(read<__m256i>(p)); }
  static __m256i stored(Vec<float> x) {
    return _mm512_cvtps_ph(x.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#elif defined(CPU_CAPABILITY_AVX2)
  static Vec<float> load(const c10::Half* p) { return _mm256_cvtph_ps(read<__m128i>(p)); }
  static __m128i stored(Vec<float> x) {
    return _mm256_cvtps_ph(x.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#else
  static constexpr int lanes = Vec<float>::lanes;

  static Vec<float> load(const c10::Half* p) {
    Vec<float> x;
    for (int i = 0; i < lanes; ++i) x.value[i] = static_cast<float>(p[i]);
    return x;
  }
  static Lanes<std::uint16_t, lanes> stored(Vec<float> x) {
    Lanes<std::uint16_t, lanes> halves;
    for (int i = 0; i < lanes; ++i) halves[i] = c10::Half(x.value[i]).x;
    return halves;
  }
#endif
};

template <class T, class Stored> Vec<T> load_row(const Stored* p) { return Conversion<T, Stored>::load(p); }

template <class T, class Stored> void store_row(Stored* p, Vec<T> x) {
  const auto stored = Conversion<T, Stored>::stored(x);
  std::memcpy(p, &stored, sizeof stored);
}

// ---- past the caches ----

constexpr int line_bytes = 64;

// Bytes of a result from which it is written past the caches. The ratio of the times past the caches and through them,
// of a forward pass and a subsequent read of the spikes, for 4, 8, 16 and 32 MiB, with 32 MiB of third-level cache:
// 0.90, 0.94, 0.88, 0.77; of a backward pass into memory that may be cached: 1.09, 1.07, 0.95, 0.89.
constexpr std::int64_t large_result = std::int64_t{8} << 20;

// Stores a value past the caches. p must be a multiple of the value's size.
template <class Value> void stream_value(void* p, Value value) {
#if defined(__AVX512F__)
  if constexpr (sizeof value == 64)
    return _mm512_stream_si512(static_cast<__m512i*>(p), __builtin_bit_cast(__m512i, value));
#endif
#if defined(__AVX__)
  if constexpr (sizeof value == 32)
    return _mm256_stream_si256(static_cast<__m256i*>(p), __builtin_bit_cast(__m256i, value));
#endif
#if defined(__x86_64__)
  if constexpr (sizeof value == 16)
    return _mm_stream_si128(static_cast<__m128i*>(p), __builtin_bit_cast(__m128i, value));
#endif
  std::memcpy(p, &value, sizeof value);
}

template <class T, class Stored> void stream_row(Stored* p, Vec<T> x) {
  stream_value(p, Conversion<T, Stored>::stored(x));
}

// Copies cached data past the caches, to any address.
inline void stream_bytes(void* to, const void* from, std::size_t count) {
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % line_bytes;
  if (head > count) head = count;
  std::memcpy(target, source, head);
  std::size_t i = head;
  using Register = Lanes<std::int32_t, vector_bytes / 4>;
  for (; i + line_bytes <= count; i += line_bytes)
    for (int k = 0; k < line_bytes; k += vector_bytes) stream_value(target + i + k, read<Register>(source + i + k));
  std::memcpy(target + i, source + i, count - i);
}

inline void stream_zeros(void* to, std::size_t count) {
  alignas(line_bytes) static constexpr char zeros[4096] = {};
  char* target = static_cast<char*>(to);
  while (count > 0) {
    const std::size_t bytes = count < sizeof zeros ? count : sizeof zeros;
    stream_bytes(target, zeros, bytes);
    target += bytes;
    count -= bytes;
  }
}

// Orders streaming stores before later stores. Called after the last streaming store.
inline void end_of_stream() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Prefetches into the second-level cache: data that is read one row later would not stay in the first.
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
