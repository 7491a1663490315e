// The compiled CPU kernels of one instruction set, and the choice among them at run time.
#pragma once

#include <spikeforge/runtime/launch.h>

#include <cstddef>
#include <cstdint>

namespace spikeforge::cpu {

// Runs the neurons [begin, end) through the whole sequence. `scratch` holds what the function of that name says for so
// many neurons.
struct Kernels {
  std::size_t (*forward_scratch)(const ForwardLaunch&, std::int64_t neurons);
  void (*forward)(const ForwardLaunch&, std::int64_t begin, std::int64_t end, void* scratch);
  std::size_t (*backward_scratch)(const BackwardLaunch&, std::int64_t neurons);
  void (*backward)(const BackwardLaunch&, std::int64_t begin, std::int64_t end, void* scratch);
};

// kernels.cpp, once for each instruction set that the build knows.
const Kernels& kernels_default();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();

// The widest set that this processor has, no wider than SPIKEFORGE_CPU_CAPABILITY (default, avx2, avx512) says.
const Kernels& kernels();
const char* capability();

}  // namespace spikeforge::cpu
