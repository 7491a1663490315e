// A kernel of cuda/multistep.cuh compiled for the host, where one thread after the other runs it. So it has no barrier
// and no shuffle: neither the time-parallel backward pass nor sums over a warp can be run, nor half types.
#pragma once

#include <spikeforge/kernels/multistep/arguments.h>
#include <spikeforge/kernels/multistep/loop_spec.h>
#include <spikeforge/kernels/multistep/schedule.h>

#include <string>

#include "catch.h"
#include "host_compiler.h"

#include <fmt/format.h>

namespace spikeforge::test {

inline constexpr const char* host_as_device = R"(
#include <cmath>
#include <cstdlib>
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads)
#define __shared__ static
#define asm(...)
struct Index { unsigned x; };
static Index blockIdx, blockDim, threadIdx;
inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
inline void __syncthreads() {}
template <class F> F __shfl_xor_sync(unsigned, F x, int) { return x; }
)";

inline std::string host_source(const jit::LoopSpec& loop, const jit::KernelSource& source) {
  const bool is_forward = loop.direction == jit::Direction::forward;
  return host_as_device + source.text +
         fmt::format(R"(
extern "C" void run(const void* words, unsigned long bytes, unsigned blocks, unsigned block) {{
  spikeforge::{}<spikeforge::Spec::Cell> args;
  if (bytes != sizeof args) std::abort();
  std::memcpy(&args, words, bytes);
  blockDim.x = block;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) {}(args);
}}
)",
                     is_forward ? "ForwardArgs" : "BackwardArgs", source.entry);
}

template <class Launch>
void run_kernel_on_host(const Launch& launch, const jit::LoopSpec& loop, const jit::KernelSource& source) {
  REQUIRE(loop.schedule.segments == 1);
  const HostCompiled code(host_source(loop, source), "-w");
  const jit::Grid grid = grid_of(loop.schedule, launch.neurons, 1);
  const jit::Arguments arguments(launch);
  code.function<void(const void*, unsigned long, unsigned, unsigned)>("run")(
      arguments.data(), arguments.bytes(), static_cast<unsigned>(grid.blocks), grid.block);
}

}  // namespace spikeforge::test
