// Frames of the events of cameras on the CPU.
#pragma once

#include "csrc/kernels/frames/frames.h"

namespace spikeforge::cpu {

// Adds the events of a sample in the steps [first, last) to its frames. Returns the index of the first event that is
// not on the sensor or before the first one, or -1. The offsets must be valid.
frames::Int add_events(const frames::FramesLaunch& call, int sample, int first, int last);

// Computes the numbers of voxels or surfaces of the cells [first, last) of a sample.
void finish_frames(const frames::FramesLaunch& call, int sample, frames::Int first, frames::Int last);

}  // namespace spikeforge::cpu
