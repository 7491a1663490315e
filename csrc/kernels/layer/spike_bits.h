// Spikes as bits on a GPU: numbers 0 and 1 in one bit each, or 0 to 15 in four bits. Number i of a byte is in its bits
// from i * bits on.
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
  std::int64_t count;  // of contiguous numbers
  const void* from = nullptr;
  void* to = nullptr;
  // A flag: packing sets it to 0 if a number cannot be represented, and packs that number as 0. If it is 0, unpacking
  // returns NaN.
  std::uint8_t* valid = nullptr;
};

// Launches on a stream of the device, whose context is current. Throws the errors of KernelCache.
void launch_spike_bits(const BitsLaunch& call, const jit::Device& device, void* stream);

// Returns the kernel of a call, for packs.
jit::KernelSource source_of(const BitsLaunch& call);

}  // namespace spikeforge::layers
