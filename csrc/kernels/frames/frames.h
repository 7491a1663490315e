// Frames of the events of cameras on a GPU, and what the CPU's kernels share with it.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/frames/arguments.h"

#include <vector>

namespace spikeforge::frames {

// The integer types of the columns of events.
enum class Column : int { u8, i8, u16, i16, u32, i32, i64, missing };

struct Columns {
  Column t = Column::i64, x = Column::i64, y = Column::missing, p = Column::missing;
};

struct FramesLaunch {
  Values values;
  Columns columns;
  DType type;  // of the numbers: float32 or float64
  FramesArguments arguments;
};

// Launches on a stream of the device, whose context is current. Throws the errors of KernelCache.
void launch_frames(const FramesLaunch& call, const jit::Device& device, void* stream);

// Returns the kernels of a call, for packs.
std::vector<jit::KernelSource> sources_of(const FramesLaunch& call);

}  // namespace spikeforge::frames
