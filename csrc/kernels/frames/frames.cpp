#include "csrc/kernels/frames/frames.h"
#include "csrc/jit/driver.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/shared_bytes.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace spikeforge::frames {
namespace {

// The compile-time choices of a kernel.
struct FramesSpec {
  unsigned threads;  // of frames_in_shared; 0: frames_in_global
  Values values;
  int t, x, y, p;  // types of columns
  int type;

  bool operator==(const FramesSpec&) const = default;
};

FramesSpec spec_of(const FramesLaunch& call, unsigned threads) {
  const auto of = [](Column column) { return static_cast<int>(column); };
  return {threads,
          call.values,
          of(call.columns.t),
          of(call.columns.x),
          of(call.columns.y),
          of(call.columns.p),
          static_cast<int>(call.type)};
}

constexpr unsigned threads_of_multiprocessor = 1024;  // with 64 registers

// The threads of a block, for few and for many frames in shared memory. Of small blocks, two are resident if cells are
// small. Sums of voxels need more registers.
std::array<unsigned, 2> threads_of(Values values) {
  if (values == Values::voxel) return {640, 640};
  return {threads_of_multiprocessor, values == Values::surface ? threads_of_multiprocessor : 512};
}

jit::KernelSource print_source(const FramesSpec& spec) {
  constexpr const char* values[] = {"count", "binary", "bits", "voxel", "surface"};
  constexpr const char* columns[] = {"unsigned char", "signed char", "unsigned short", "short",
                                     "unsigned",      "int",         "long long",      "Missing"};
  const unsigned threads = spec.threads != 0 ? spec.threads : threads_of(spec.values)[0];
  return {.name = spec.threads != 0 ? "event_frames_in_shared" : "event_frames",
          .entry = "spikeforge_frames",
          .text = fmt::format(
              R"(#include <spikeforge/cuda/frames/frames.cuh>

using namespace spikeforge;
using namespace spikeforge::frames;

extern "C" __global__ void __launch_bounds__({}, {}) spikeforge_frames(const __grid_constant__ FramesArguments args) {{
  {}<Values::{}, {}, {}, {}, {}, {}{}>(args);
}}
)",
              threads, threads_of_multiprocessor / threads, spec.threads != 0 ? "frames_in_shared" : "frames_in_global",
              values[static_cast<int>(spec.values)], columns[spec.t], columns[spec.x], columns[spec.y], columns[spec.p],
              cuda_name(static_cast<DType>(spec.type)), spec.threads != 0 ? fmt::format(", {}", threads) : "")};
}

// A launch of frames_in_shared. No blocks: frames are too large, or too few to occupy a quarter of the device.
struct SharedLaunch {
  Int blocks = 0;
  unsigned cluster = 1, threads = 0, bytes = 0;
};

// Sets `steps_of_block` and `kept_events`.
SharedLaunch shared_launch_of(Values values, FramesArguments& args, const jit::Device& device) {
  SharedLaunch launch;
  const Int frames = Int{args.steps} * args.samples, most_bytes = kernels::most_shared_bytes(device);
  // Few frames have several blocks each.
  while (device.major >= 9 && launch.cluster < 8 && 4 * launch.cluster * frames < 3 * device.multiprocessors)
    launch.cluster *= 2;
  launch.threads = threads_of(values)[3 * launch.cluster * frames >= 4 * device.multiprocessors ? 1 : 0];
  const Int resident = device.multiprocessors * (threads_of_multiprocessor / launch.threads);
  args.steps_of_block = static_cast<int>(std::min({(frames - 1) / resident + 1, Int{args.steps}, Int{64}}));
  launch.blocks = ((args.steps - 1) / args.steps_of_block + 1) * Int{args.samples} * launch.cluster;
  const Int bytes = shared_bytes_of(values, args.cells) + 8 * (args.steps_of_block + Int{2});
  if (bytes > most_bytes || 4 * launch.blocks < device.multiprocessors || launch.blocks >> 30 != 0) return {};
  args.kept_events =
      values == Values::voxel && args.steps_of_block > 1 ? static_cast<int>((most_bytes - bytes) / 8) : 0;
  launch.bytes = static_cast<unsigned>(bytes + 8 * args.kept_events);
  return launch;
}

}  // namespace

std::vector<jit::KernelSource> sources_of(const FramesLaunch& call) {
  const auto [few, many] = threads_of(call.values);
  std::vector sources{print_source(spec_of(call, 0)), print_source(spec_of(call, few))};
  if (many != few) sources.push_back(print_source(spec_of(call, many)));
  return sources;
}

void launch_frames(const FramesLaunch& call, const jit::Device& device, void* stream) {
  auto& kernels = jit::SpecTable<FramesSpec>::of(device);
  FramesArguments args = call.arguments;
  if (args.samples == 0) return;
  const SharedLaunch shared = shared_launch_of(call.values, args, device);
  if (shared.blocks > 0) {
    const jit::LoadedKernel& kernel = kernels.get(spec_of(call, shared.threads), device);
    const auto blocks = static_cast<unsigned>(shared.blocks);
    kernel.allow_shared(kernels::most_shared_bytes(device), jit::Driver::get().device());
    if (shared.cluster > 1)
      kernel.launch_in_clusters(blocks, shared.cluster, shared.threads, shared.bytes, stream, &args, sizeof args);
    else
      kernel.launch({blocks, 1, 1}, shared.threads, shared.bytes, stream, &args, sizeof args);
  } else {
    args.redone = nullptr;
  }
  const jit::LoadedKernel& kernel = kernels.get(spec_of(call, 0), device);
  kernel.launch_together(static_cast<unsigned>(device.multiprocessors), threads_of(call.values)[0], 0, stream, &args);
}

}  // namespace spikeforge::frames
