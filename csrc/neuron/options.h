// The choices that change a cell's equations, as constants of a kernel. On the CPU, CellForm in
// kernels/multistep/cell.h has the same names as values.
#pragma once

namespace spikeforge {

template <bool HardReset, bool DetachReset, bool Spiking, bool DecayInput> struct StaticOptions {
  static constexpr bool hard_reset = HardReset;
  static constexpr bool detach_reset = DetachReset;
  static constexpr bool spiking = Spiking;
  static constexpr bool decay_input = DecayInput;
};

// The options of a cell without choices.
struct NoOptions {};

}  // namespace spikeforge
