// The program of a call on the CPU: a loop, and the size of its tiles.
#pragma once

#include "csrc/cpu/kernels.h"

#include <cstdint>

namespace spikeforge::cpu {

struct Program {
  Loop loop;
  LoopContext context;
  std::int64_t largest_tile;
};

// Made at the first call of a traced cell, which may wait for the machine's C++ compiler (host_compiler.h).
Program program_of(const ForwardLaunch& launch);
Program program_of(const BackwardLaunch& launch);

}  // namespace spikeforge::cpu
