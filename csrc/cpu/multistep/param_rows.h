// The parameters of a tile's neurons as rows of numbers, and checks of their legal ranges.
#pragma once

#include "csrc/base/views.h"
#include "csrc/cpu/numbers.h"
#include "csrc/kernels/multistep/cell.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// Returns the size of a row of parameters: load_numbers fills the last granule of a run.
inline std::size_t param_row_size(std::int64_t padded) { return static_cast<std::size_t>(padded + granule); }

template <class T> bool all_legal(const T* row, std::int64_t count, LegalRange range) {
  const T least = static_cast<T>(range.least), most = static_cast<T>(range.most);
  std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t> illegal = 0;  // as wide as T: the loop is vectorised
  for (std::int64_t i = 0; i < count; ++i) illegal |= !(least <= row[i]) | !(row[i] <= most);
  return illegal == 0;
}

// Loads the parameters of `count` neurons from `begin` on, in runs of one repeated element or of consecutive elements,
// so that there is no division per neuron.
template <class T, class Stored>
void load_runs(const ParamView& param, std::int64_t begin, std::int64_t count, T* row) {
  const auto* const data = static_cast<const Stored*>(param.data);
  std::int64_t place = begin / param.inner % param.count, within = begin % param.inner;
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t left = count - i;
    if (param.inner == 1) {
      const std::int64_t run = param.count - place < left ? param.count - place : left;
      load_numbers<T>(data + place, row + i, run);
      place = 0;
      i += run;
    } else {
      const std::int64_t run = param.inner - within < left ? param.inner - within : left;
      const T number = static_cast<T>(data[place]);
      for (std::int64_t k = 0; k < run; ++k) row[i + k] = number;
      within = 0;
      if (++place == param.count) place = 0;
      i += run;
    }
  }
}

// Returns the neurons' values in memory, if they can be used as a row; else null. `is_whole`: no element after them is
// read.
template <class T>
const T* param_in_place(const ParamView& param, std::int64_t begin, std::int64_t count, bool is_whole) {
  const std::int64_t place = begin % param.count;
  const bool is_arithmetic = with_type<T>(param.type, [](auto stored) { return std::is_same_v<decltype(stored), T>; });
  if (!is_arithmetic || !is_whole || param.inner != 1 || param.count - place < count) return nullptr;
  return static_cast<const T*>(param.data) + place;
}

// Loads a row of param_row_size(padded) values; those after `count` repeat the last one.
template <class T> void load_param_row(const ParamView& param, std::int64_t begin, std::int64_t count, T* row) {
  const std::int64_t padded = (count + granule - 1) / granule * granule;
  const std::int64_t period = param.count * param.inner, first = period < count ? period : count;
  with_type<T>(param.type, [&](auto stored) { load_runs<T, decltype(stored)>(param, begin, first, row); });
  for (std::int64_t filled = first; filled < count;) {
    const std::int64_t more = filled < count - filled ? filled : count - filled;
    std::memcpy(row + filled, row, static_cast<std::size_t>(more) * sizeof(T));
    filled += more;
  }
  for (std::int64_t i = count; i < padded; ++i) row[i] = row[count - 1];
}

// The same; returns true if all values are legal.
template <class T>
bool load_param_row(const ParamView& param, const CellParam& described, std::int64_t begin, std::int64_t count,
                    T* row) {
  constexpr DType arithmetic = std::is_integral_v<T> ? DType::i32 : sizeof(T) == 8 ? DType::f64 : DType::f32;
  load_param_row(param, begin, count, row);
  return !described.is_checked() || all_legal(row, count, described.range(arithmetic));
}

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
