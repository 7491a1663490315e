// Products of a matrix whose entries have a delay each, on a GPU. For the CPU, see csrc/cpu/layer/delayed_product.h.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/layer/arguments.h"

#include <cstdint>

namespace spikeforge::layers {

enum class DelayedPass : int { add, sums };

constexpr int most_delayed_taps = 8;

// The compile-time choices of a kernel, which do not include sizes.
struct DelayedKernel {
  DelayedPass pass;
  DType type = DType::f32;  // or float64
  int taps = 0;             // 1 to most_delayed_taps
};

// A launch, with the formulas of DelayedArguments. All sizes are positive.
struct DelayedLaunch {
  DelayedKernel kernel;
  std::int64_t rows_count = 0, columns = 0, steps = 0, lanes = 0;
  const std::int32_t* shifts = nullptr;
  const void* coefficients = nullptr;
  const void* in = nullptr;  // readable for delayed_margin() numbers after its end
  std::int64_t in_stride = 0, in_of_row = 0;
  void* rows = nullptr;
  std::int64_t rows_stride = 0;
  void* out = nullptr;
};

// Returns the number of elements after the last step that a strip may read.
std::int64_t delayed_margin(DType type, std::int64_t lanes);

// True if the numbers of threads and blocks of this launch do not overflow.
bool can_launch(const DelayedLaunch& call);

// Launches on a stream of the device, whose context is current. Throws the errors of KernelCache.
void launch_delayed_product(const DelayedLaunch& call, const jit::Device& device, void* stream);

// The parts of launch_delayed_product(): the kernel, which packs contain, and its launch.
jit::KernelSource source_of(const DelayedKernel& kernel);

constexpr unsigned delayed_threads = 32 * delayed_warps;  // of a block
struct DelayedGrid {
  DelayedArguments arguments;
  unsigned blocks;
};
DelayedGrid grid_of(const DelayedLaunch& call);

}  // namespace spikeforge::layers
