// Spikes as bits on the CPU, in one instruction set.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"

#include <cstdint>

namespace spikeforge::cpu {

// Numbers 0 and 1 in one bit each, or 0 to 15 in four bits: number i of a byte is in its bits from i * bits on.
struct SpikeBits {
  // Returns true if all numbers are representable; the others are packed as 0. The last byte is filled with zeros.
  bool (*pack)(const void* x, DType type, std::int64_t count, int bits, std::uint8_t* packed);
  void (*unpack)(const std::uint8_t* packed, std::int64_t count, int bits, DType type, void* x);
};

SPIKEFORGE_EACH_SET(const SpikeBits&, spike_bits, ());

// Returns the kernels of the widest supported instruction set, as in loops().
const SpikeBits& spike_bits();

}  // namespace spikeforge::cpu
