// The names of options in metadata, on the command line and in Python.
#pragma once
#include "csrc/nir/network/options.h"

namespace spikeforge::nir {

template <class E> struct Word {
  const char* text;
  E value;
};

inline constexpr Word<Reset> resets[] = {{"file", Reset::file},
                                         {"zero", Reset::zero},
                                         {"subtract", Reset::subtract},
                                         {"subtract-delayed", Reset::subtract_delayed},
                                         {"subtract-twice", Reset::subtract_twice}};
inline constexpr Word<IfScaling> if_scalings[] = {{"ode", IfScaling::ode}, {"per-step", IfScaling::per_step}};
inline constexpr Word<Comparison> comparisons[] = {{"gt", Comparison::gt}, {"ge", Comparison::ge}};
inline constexpr Word<CubaCurrent> cuba_currents[] = {{"new", CubaCurrent::updated}, {"old", CubaCurrent::previous}};
inline constexpr Word<RecurrentStart> recurrent_starts[] = {{"zero", RecurrentStart::zero},
                                                            {"apply", RecurrentStart::apply}};
inline constexpr Word<DelayRounding> delay_roundings[] = {{"exact", DelayRounding::exact},
                                                          {"nearest", DelayRounding::nearest}};
inline constexpr Word<ShapeRule> shape_rules[] = {{"strict", ShapeRule::strict}, {"tolerant", ShapeRule::tolerant}};

}  // namespace spikeforge::nir
