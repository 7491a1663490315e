// The SIMD arithmetic type of cells on the CPU: at::vec's vectors with the functions of portable.h, found by
// argument-dependent look-up. Included by kernels.cpp alone, which is compiled once for each instruction set;
// everything is in a namespace of that set's name, so that no two of them share a symbol.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <type_traits>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

template <class T>
struct Mask {
  at::vec::Vectorized<T> bits;
};

template <class T>
struct Vec {
  using Native = at::vec::Vectorized<T>;
  static constexpr int lanes = Native::size();

  Native value;

  Vec() = default;
  Vec(double x) : value(static_cast<T>(x)) {}
  Vec(Native x) : value(x) {}

  friend Vec operator+(Vec a, Vec b) { return a.value + b.value; }
  friend Vec operator-(Vec a, Vec b) { return a.value - b.value; }
  friend Vec operator*(Vec a, Vec b) { return a.value * b.value; }
  friend Vec operator/(Vec a, Vec b) { return a.value / b.value; }
  friend Vec operator-(Vec a) { return a.value.neg(); }
  friend Mask<T> operator<(Vec a, Vec b) { return {a.value < b.value}; }
  friend Mask<T> operator<=(Vec a, Vec b) { return {a.value <= b.value}; }
  friend Mask<T> operator>=(Vec a, Vec b) { return {a.value >= b.value}; }

  friend Vec select(Mask<T> mask, Vec a, Vec b) { return Native::blendv(b.value, a.value, mask.bits); }
  friend Vec abs(Vec a) { return a.value.abs(); }
  friend Vec exp(Vec a) { return a.value.exp(); }
  friend Vec log(Vec a) { return a.value.log(); }
  friend Vec pow(Vec a, Vec b) { return a.value.pow(b.value); }
  friend Vec sin(Vec a) { return a.value.sin(); }
  friend Vec cos(Vec a) { return a.value.cos(); }
  friend Vec round(Vec a) { return a.value.round(); }
  friend Vec atan(Vec a) { return a.value.atan(); }
  friend Vec erfc(Vec a) { return a.value.erfc(); }
};

// Row access converts between the stored type and the arithmetic's. `count` lanes are read or written, the others read
// as 0.
template <class T, class Stored>
struct RowAccess {
  static Vec<T> load(const Stored* p, int count) {
    constexpr int lanes = Vec<T>::lanes;
    if constexpr (std::is_same_v<Stored, T>) {
      return count == lanes ? at::vec::Vectorized<T>::loadu(p) : at::vec::Vectorized<T>::loadu(p, count);
    } else if constexpr (std::is_same_v<T, float> && sizeof(Stored) == 2) {
      at::vec::Vectorized<float> out;
      if (count == lanes) {
        load_half(p, out);
      } else {
        Stored padded[lanes] = {};
        for (int i = 0; i < count; ++i) padded[i] = p[i];
        load_half(padded, out);
      }
      return out;
    } else {
      T converted[lanes] = {};
      for (int i = 0; i < count; ++i) converted[i] = static_cast<T>(p[i]);
      return at::vec::Vectorized<T>::loadu(converted);
    }
  }

  static void store(Stored* p, Vec<T> x, int count) {
    if constexpr (std::is_same_v<Stored, T>) {
      if (count == Vec<T>::lanes) {
        x.value.store(p);
      } else {
        x.value.store(p, count);
      }
    } else if constexpr (std::is_same_v<T, float> && sizeof(Stored) == 2) {
      at::vec::convert_from_float<Stored>(x.value, x.value).store(p, count);
    } else {
      T converted[Vec<T>::lanes];
      x.value.store(converted);
      for (int i = 0; i < count; ++i) p[i] = static_cast<Stored>(converted[i]);
    }
  }

 private:
  static void load_half(const c10::BFloat16* p, at::vec::Vectorized<float>& out) {
    at::vec::load_fp32_from_bf16(p, out);
  }
  static void load_half(const c10::Half* p, at::vec::Vectorized<float>& out) { at::vec::load_fp32_from_fp16(p, out); }
};

template <class T, class Stored>
Vec<T> load_row(const Stored* p, int count) {
  return RowAccess<T, Stored>::load(p, count);
}

template <class T, class Stored>
void store_row(Stored* p, Vec<T> x, int count) {
  RowAccess<T, Stored>::store(p, x, count);
}

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
