// The choices that change a cell's equations, as constants of a kernel. The CPU has the same names as values:
// NeuronOptions in runtime/launch.h.
#pragma once

namespace spikeforge {

template <bool HardReset, bool DetachReset, bool Spiking, bool DecayInput> struct StaticOptions {
  static constexpr bool hard_reset = HardReset;
  static constexpr bool detach_reset = DetachReset;
  static constexpr bool spiking = Spiking;
  static constexpr bool decay_input = DecayInput;
};

// A cell that has no such choice.
struct NoOptions {};

}  // namespace spikeforge
