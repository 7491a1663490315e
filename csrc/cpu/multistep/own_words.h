// The numbers of a cell that differ between neurons, because they depend on a parameter that is a tensor.
//
// The cell is constructed once from numbers that record the parameters on which they depend, and have the size of the
// vectors that they replace: both cells have the same layout, so a number is identified by its place.
#pragma once

#include "csrc/cpu/vec.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

template <class T> struct Noted {
  static constexpr std::size_t words = sizeof(Vec<T>) / sizeof(std::uint64_t);
  static constexpr std::uint64_t mark = 0x9e3779b97f4a7c15;  // which no option and no number of a surrogate is

  alignas(Vec<T>) std::uint64_t note[words];

  Noted() = default;
  Noted(double) : note{} {}  // NOLINT(google-explicit-constructor)

  static Noted noting(bool depends) {
    Noted number(0.);
    for (std::uint64_t& word : number.note) word = depends ? mark : 0;
    return number;
  }

  bool depends() const { return note[0] == mark; }

  friend Noted of(Noted a, Noted b) { return noting(a.depends() || b.depends()); }
  friend Noted operator+(Noted a, Noted b) { return of(a, b); }
  friend Noted operator-(Noted a, Noted b) { return of(a, b); }
  friend Noted operator*(Noted a, Noted b) { return of(a, b); }
  friend Noted operator/(Noted a, Noted b) { return of(a, b); }
  friend Noted operator<(Noted a, Noted b) { return of(a, b); }
  friend Noted operator<=(Noted a, Noted b) { return of(a, b); }
  friend Noted operator>=(Noted a, Noted b) { return of(a, b); }
  friend Noted operator-(Noted a) { return a; }
  friend Noted select(Noted condition, Noted a, Noted b) { return of(condition, of(a, b)); }
  friend Noted abs(Noted a) { return a; }
  friend Noted exp(Noted a) { return a; }
  friend Noted log(Noted a) { return a; }
  friend Noted sqrt(Noted a) { return a; }
};

// The numbers of a cell, which follow its options and its surrogate, as words of the size of a vector.
template <class Cell, class V, class Surrogate, class Options, class Neuron> struct Words {
  struct OptionsAndSurrogate {
    Options options;
    Surrogate surrogate;
  };
  struct AndEmptyNeuron {
    Options options;
    Surrogate surrogate;
    Neuron neuron;
  };
  using Head = std::conditional_t<std::is_empty_v<Neuron>, AndEmptyNeuron, OptionsAndSurrogate>;
  // A neuron that keeps the options has a word of them first.
  struct Look : Neuron {
    template <class Self> static constexpr bool has_options() {
      return requires { sizeof(Self::options); };
    }
  };
  static constexpr int first =
      static_cast<int>((sizeof(Head) + sizeof(V) - 1) / sizeof(V)) + (Look::template has_options<Look>() ? 1 : 0);
  static constexpr int count = static_cast<int>(sizeof(Cell) / sizeof(V)) - first;
  static_assert(sizeof(Cell) % sizeof(V) == 0 && count > 0 && count <= 32);
};

// A bit for each word that depends on a noted parameter, of a cell made by Noting(params, surrogate, options), which
// has the layout of the cell over vectors.
template <class Noting, int first, class T, class Surrogate, class Options>
std::uint32_t noted_words(const Noted<T>* params, const Surrogate& surrogate, const Options& options) {
  constexpr int size = sizeof(Noted<T>);
  const Noting cell(params, surrogate, options);
  const Noted<T> noted = Noted<T>::noting(true);
  std::uint32_t words = 0;
  for (int i = 0; i < static_cast<int>(sizeof cell) / size; ++i)
    if (std::memcmp(reinterpret_cast<const char*>(&cell) + i * size, &noted, size) == 0) {
      if (i < first) __builtin_trap();  // the layout differs from that of Words
      words |= 1u << (i - first);
    }
  return words;
}

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
