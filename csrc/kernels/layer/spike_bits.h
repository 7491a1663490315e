// Spikes as bits on a GPU: numbers 0 and 1 in a bit each, or 0 to 15 in four, number i of a byte in its bits from
// i * bits on.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"

#include <cstdint>

namespace spikeforge::layers {

enum class BitsPass : int { pack, unpack };

struct BitsLaunch {
  BitsPass pass;
  DType type;
  int bits;
  std::int64_t count;  // of the numbers, which lie one after the other
  const void* from = nullptr;
  void* to = nullptr;
  // A byte: packing makes it 0 where a number is none that there are bits for, which then counts as 0; where it is 0,
  // unpacking gives NaN.
  std::uint8_t* valid = nullptr;
};

// Launches on a stream of the device, whose context is current. Throws the errors of KernelCache.
void launch_spike_bits(const BitsLaunch& call, const jit::Device& device, void* stream);

// The kernel of such a call, for packs.
jit::KernelSource source_of(const BitsLaunch& call);

}  // namespace spikeforge::layers
