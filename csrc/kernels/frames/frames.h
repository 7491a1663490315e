// Frames of the events of cameras on a GPU, and what the CPU's kernels share with it.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/frames/arguments.h"

#include <vector>

namespace spikeforge::frames {

// The integer types of the columns of events.
enum class Column : int { u8, i8, u16, i16, u32, i32, i64 };

struct Columns {
  Column t = Column::i64, x = Column::i64, y = Column::i64, p = Column::i64;
};

struct FramesLaunch {
  Values values;
  Columns columns;
  DType type;  // of the numbers: float32 or float64
  FramesArguments arguments;
  void* numbers = nullptr;  // of voxels and surfaces
};

// True if `arguments.out` has 64-bit sums or times, from which a second pass computes the numbers.
constexpr bool has_second_pass(Values values) { return values == Values::voxel || values == Values::surface; }

// True if blocks compute whole frames in shared memory, and write every number. Otherwise, events are added to frames
// that are zeros before the launch: frames that are too large, or too few to occupy the device.
bool in_shared_memory(const FramesLaunch& call, const jit::Device& device);

// Launches on a stream of the device, whose context is current. Throws the errors of KernelCache.
void launch_frames(const FramesLaunch& call, const jit::Device& device, void* stream);

// Returns the kernels of a call, for packs.
std::vector<jit::KernelSource> sources_of(const FramesLaunch& call);

}  // namespace spikeforge::frames
