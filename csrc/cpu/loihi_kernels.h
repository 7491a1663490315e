// Loihi's neurons and their sums on the CPU, in one instruction set, as kernels.h.
#pragma once

#include <spikeforge/runtime/loihi_launch.h>

#include <cstdint>

namespace spikeforge::cpu {

constexpr std::int64_t loihi_tile = 1024;  // states and cells of a tile, 40 KiB, are on the stack

struct LoihiKernels {
  // Runs the neurons [begin, end), at most loihi_tile of them, through the whole sequence.
  void (*neurons)(const LoihiLaunch&, std::int64_t begin, std::int64_t end);

  // The sums y [out] of the messages x [in], modulo 2^32: with weights [out, in], a dot product each; with their
  // columns [in, out], those whose message is not 0 added up.
  void (*dots)(const int* x, const int* weights, std::int64_t in, std::int64_t out, int* y);
  void (*columns)(const int* x, const int* columns, std::int64_t in, std::int64_t out, int* y);
};

const LoihiKernels& loihi_kernels_default();
const LoihiKernels& loihi_kernels_avx2();
const LoihiKernels& loihi_kernels_avx512();

// Of the widest set, as kernels() chooses.
const LoihiKernels& loihi_kernels();

}  // namespace spikeforge::cpu
