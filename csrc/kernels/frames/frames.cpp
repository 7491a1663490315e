#include "csrc/kernels/frames/frames.h"
#include "csrc/jit/driver.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/shared_bytes.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

namespace spikeforge::frames {
namespace {

// The compile-time choices of a kernel.
struct FramesSpec {
  int in_shared;
  Values values;
  int t, x, y, p;  // types of columns
  int type;

  bool operator==(const FramesSpec&) const = default;
};

FramesSpec spec_of(const FramesLaunch& call, bool in_shared) {
  const auto of = [](Column column) { return static_cast<int>(column); };
  return {in_shared,          call.values,        of(call.columns.t),         of(call.columns.x),
          of(call.columns.y), of(call.columns.p), static_cast<int>(call.type)};
}

constexpr unsigned threads_of_multiprocessor = 1024;  // with 64 registers

// Few blocks are resident at once if their cells have 32 bits, so these are larger.
unsigned threads_of(Values values) { return has_second_pass(values) ? 1024 : 512; }

jit::KernelSource print_source(const FramesSpec& spec) {
  constexpr const char* values[] = {"count", "binary", "bits", "voxel", "surface"};
  constexpr const char* columns[] = {"unsigned char", "signed char", "unsigned short", "short",
                                     "unsigned",      "int",         "long long",      "Missing"};
  const unsigned threads = threads_of(spec.values);
  return {.name = spec.in_shared != 0 ? "event_frames_in_shared" : "event_frames",
          .entry = "spikeforge_frames",
          .text = fmt::format(R"(#include <spikeforge/cuda/frames/frames.cuh>

using namespace spikeforge;
using namespace spikeforge::frames;

extern "C" __global__ void __launch_bounds__({}, {}) spikeforge_frames(const __grid_constant__ FramesArguments args) {{
  {}<Values::{}, {}, {}, {}, {}, {}{}>(args);
}}
)",
                              threads, threads_of_multiprocessor / threads,
                              spec.in_shared != 0 ? "frame_in_shared" : "frames_in_global",
                              values[static_cast<int>(spec.values)], columns[spec.t], columns[spec.x], columns[spec.y],
                              columns[spec.p], cuda_name(static_cast<DType>(spec.type)),
                              spec.in_shared != 0 ? fmt::format(", {}", threads) : "")};
}

// Returns the blocks that compute a frame in shared memory. Few frames have several, to occupy the device. Returns 0 if
// frames are too large, or too few to occupy a quarter of it.
unsigned blocks_of_frame(const FramesLaunch& call, const jit::Device& device) {
  const Int frames = Int{call.arguments.steps} * call.arguments.samples;
  if (shared_bytes_of(call.values, call.arguments.cells) > kernels::most_shared_bytes(device) || frames > Int{1} << 27)
    return 0;
  const Int most = device.multiprocessors * (threads_of_multiprocessor / threads_of(call.values));
  Int blocks = 1;
  while (device.major >= 9 && blocks < 8 && 4 * blocks * frames < 3 * most) blocks *= 2;
  return 4 * blocks * frames >= device.multiprocessors ? static_cast<unsigned>(blocks) : 0;
}

}  // namespace

std::vector<jit::KernelSource> sources_of(const FramesLaunch& call) {
  return {print_source(spec_of(call, true)), print_source(spec_of(call, false))};
}

void launch_frames(const FramesLaunch& call, const jit::Device& device, void* stream) {
  auto& kernels = jit::SpecTable<FramesSpec>::of(device);
  FramesArguments args = call.arguments;
  if (args.samples == 0) return;
  const unsigned threads = threads_of(call.values), blocks = blocks_of_frame(call, device);
  if (blocks > 0) {
    const jit::LoadedKernel& kernel = kernels.get(spec_of(call, true), device);
    const auto bytes = static_cast<unsigned>(shared_bytes_of(call.values, args.cells));
    const auto all = static_cast<unsigned>(args.steps * args.samples) * blocks;
    kernel.allow_shared(kernels::most_shared_bytes(device), jit::Driver::get().device());
    if (blocks > 1)
      kernel.launch_in_clusters(all, blocks, threads, bytes, stream, &args, sizeof args);
    else
      kernel.launch({all, 1, 1}, threads, bytes, stream, &args, sizeof args);
  } else {
    args.redone = nullptr;
  }
  const jit::LoadedKernel& kernel = kernels.get(spec_of(call, false), device);
  kernel.launch_together(static_cast<unsigned>(kernel.blocks_at_once(threads) * device.multiprocessors), threads, 0,
                         stream, &args);
}

}  // namespace spikeforge::frames
