// A kernel of cuda/multistep/multistep.cuh compiled for the host, which runs its threads sequentially. Barriers and
// shuffles are not supported, so the time-parallel backward pass, sums over a warp and half types cannot be run.
#pragma once

#include "csrc/kernels/multistep/arguments.h"
#include "csrc/kernels/multistep/plan.h"

#include <map>
#include <string>

#include "tests/catch.h"
#include "tests/codegen/host_compiler.h"

#include <fmt/format.h>

namespace spikeforge::test {

inline const std::string host_as_device = std::string(device_words) + R"(
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#define asm(...)
static Index blockIdx, blockDim, threadIdx;
inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32); }
using std::min;
using std::max;
inline void __syncthreads() {}
template <class F> F __shfl_xor_sync(unsigned, F x, int) { return x; }
)";

// Returns the source of the function `run`, which calls the kernel `entry` for each thread of each block.
inline std::string host_runner(const std::string& arguments, const std::string& entry) {
  return fmt::format(R"(
extern "C" void run(const void* words, unsigned long bytes, unsigned blocks, unsigned block) {{
  {} args;
  if (bytes != sizeof args) std::abort();
  std::memcpy(&args, words, bytes);
  blockDim.x = block;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) {}(args);
}}
)",
                     arguments, entry);
}

inline std::string host_source(const kernels::KernelSpec& spec) {
  const jit::KernelSource source = print_source(spec);
  return host_as_device + source.text + host_runner(arguments_of(spec.loop), source.entry);
}

// Tests run a kernel with many values.
inline const HostCompiled& compiled_once(const std::string& source) {
  static std::map<std::string, HostCompiled> compiled;
  return compiled.try_emplace(source, source, "-w").first->second;
}

// Runs the kernel as for a device with this number of multiprocessors. Returns its schedule for that device.
template <class AnyLaunch> kernels::Schedule run_on_host(const AnyLaunch& launch, int multiprocessors) {
  const auto [schedule, spec, at_once] = kernels::plan(launch, multiprocessors);
  REQUIRE(schedule.segments == 1);
  const HostCompiled& code = compiled_once(host_source(spec));
  const kernels::Grid grid = grid_of(schedule, at_once, 1);
  const kernels::Arguments arguments(launch, at_once);
  code.function<void(const void*, unsigned long, unsigned, unsigned)>("run")(
      arguments.data(), arguments.bytes(), static_cast<unsigned>(grid.blocks), grid.block);
  return schedule;
}

}  // namespace spikeforge::test
