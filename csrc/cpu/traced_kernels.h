// The interpreter of traced cells, compiled for one instruction set.
#pragma once

#include <spikeforge/cpu/traced_program.h>
#include <spikeforge/runtime/traced_launch.h>

#include <cstddef>
#include <cstdint>

namespace spikeforge::cpu {

// Does what running a tape's instructions over the elements [begin, end) of its rows does; `rows` are Row<T> of the
// arithmetic's type. Null: the instructions are run.
using TapeFunction = void (*)(const void* rows, std::int64_t begin, std::int64_t end);

struct TapeFunctions {
  TapeFunction step = nullptr, advance = nullptr, backward = nullptr;
};

// Runs the neurons [begin, end) through the whole sequence. `scratch`, on a cache line, holds what the function of that
// name says for so many neurons.
struct TracedKernels {
  std::size_t (*forward_scratch)(const TracedForwardLaunch&, const TracedProgram&, std::int64_t neurons);
  void (*forward)(const TracedForwardLaunch&, const TracedProgram&, const TapeFunctions&, std::int64_t begin,
                  std::int64_t end, void* scratch);
  std::size_t (*backward_scratch)(const TracedBackwardLaunch&, const TracedProgram&, std::int64_t neurons);
  void (*backward)(const TracedBackwardLaunch&, const TracedProgram&, const TapeFunctions&, std::int64_t begin,
                   std::int64_t end, void* scratch);
};

// traced_kernels.cpp, once for each instruction set that the build knows.
const TracedKernels& traced_kernels_default();
const TracedKernels& traced_kernels_avx2();
const TracedKernels& traced_kernels_avx512();

// Those of the set that kernels.h chooses.
const TracedKernels& traced_kernels();

}  // namespace spikeforge::cpu
