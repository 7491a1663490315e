#include "csrc/kernels/frames/frames.h"
#include "csrc/jit/driver.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/shared_bytes.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace spikeforge::frames {
namespace {

constexpr unsigned threads = 256;
constexpr unsigned threads_of_frame = 512;  // of a block that computes a frame
constexpr Int events_of_block = 2048;

enum class Pass : int { add, finish, frame, second_frame };

// The compile-time choices of a kernel.
struct FramesSpec {
  Pass pass;
  Values values;
  int t, x, y, p;  // types of columns
  int type;

  bool operator==(const FramesSpec&) const = default;
};

jit::KernelSource print_source(const FramesSpec& spec) {
  constexpr const char* values[] = {"count", "binary", "bits", "voxel", "surface"};
  constexpr const char* columns[] = {"unsigned char", "signed char", "unsigned short", "short",
                                     "unsigned",      "int",         "long long"};
  const char* const number = cuda_name(static_cast<DType>(spec.type));
  const char* const value = values[static_cast<int>(spec.values)];
  const bool finishes = spec.pass == Pass::finish;
  const bool is_frame = spec.pass == Pass::frame || spec.pass == Pass::second_frame;
  const std::string kernel =
      finishes ? fmt::format("finish<Values::{}, {}, {}>", value, columns[spec.t], number)
               : fmt::format("{}<Values::{}, {}, {}, {}, {}, {}, {}>", is_frame ? "frame_in_shared" : "add_events",
                             value, columns[spec.t], columns[spec.x], columns[spec.y], columns[spec.p], number,
                             is_frame ? spec.pass == Pass::second_frame : events_of_block);
  return {.name = finishes   ? "event_frames_finish"
                  : is_frame ? "event_frames_in_shared"
                             : "event_frames",
          .entry = "spikeforge_frames",
          .text = fmt::format(R"(#include <spikeforge/cuda/frames/frames.cuh>

using namespace spikeforge;
using namespace spikeforge::frames;

extern "C" __global__ void __launch_bounds__({}) spikeforge_frames(const __grid_constant__ FramesArguments args) {{
  {}(args);
}}
)",
                              is_frame ? threads_of_frame : threads, kernel)};
}

FramesSpec add_spec(const FramesLaunch& call, Pass pass) {
  const auto of = [](Column column) { return static_cast<int>(column); };
  return {pass,
          call.values,
          of(call.columns.t),
          of(call.columns.x),
          of(call.columns.y),
          of(call.columns.p),
          static_cast<int>(call.type)};
}

FramesSpec finish_spec(const FramesLaunch& call) {
  return {Pass::finish, call.values, static_cast<int>(call.columns.t), 0, 0, 0, static_cast<int>(call.type)};
}

unsigned blocks_of(Int items, Int of_block) { return static_cast<unsigned>((items + of_block - 1) / of_block); }

// The blocks that compute a frame in shared memory: one for each channel if cells have 64 bits.
Int blocks_of_frame(const FramesLaunch& call) { return has_second_pass(call.values) ? call.arguments.channels : 1; }

Int shared_bytes_of(const FramesLaunch& call, Pass pass) {
  const Int cells = call.arguments.cells / blocks_of_frame(call);
  switch (call.values) {
    case Values::count: return (cells + 1) * (pass == Pass::frame ? 2 : 4);
    case Values::binary: return (cells + 31) / 32 * 4;
    case Values::bits: return cells * 4;
    default: return cells * 8;
  }
}

void launch_in_shared(const FramesLaunch& call, const jit::Device& device, void* stream) {
  const FramesArguments& args = call.arguments;
  for (const Pass pass : {Pass::frame, Pass::second_frame}) {
    const jit::LoadedKernel& kernel = jit::SpecTable<FramesSpec>::of(device).get(add_spec(call, pass), device);
    kernel.allow_shared(kernels::most_shared_bytes(device), jit::Driver::get().device());
    kernel.launch({static_cast<unsigned>(blocks_of_frame(call) * args.steps * args.samples), 1, 1}, threads_of_frame,
                  static_cast<unsigned>(shared_bytes_of(call, pass)), stream, &args, sizeof args);
  }
}

}  // namespace

std::vector<jit::KernelSource> sources_of(const FramesLaunch& call) {
  std::vector<jit::KernelSource> sources;
  for (const Pass pass : {Pass::add, Pass::frame, Pass::second_frame})
    sources.push_back(print_source(add_spec(call, pass)));
  if (has_second_pass(call.values)) sources.push_back(print_source(finish_spec(call)));
  return sources;
}

bool in_shared_memory(const FramesLaunch& call, const jit::Device& device) {
  const Int blocks = blocks_of_frame(call) * call.arguments.steps * call.arguments.samples;
  return 4 * blocks >= device.multiprocessors && blocks <= Int{1} << 30 &&
         shared_bytes_of(call, Pass::second_frame) <= kernels::most_shared_bytes(device);
}

void launch_frames(const FramesLaunch& call, const jit::Device& device, void* stream) {
  const FramesArguments& args = call.arguments;
  if (args.samples == 0) return;
  auto& kernels = jit::SpecTable<FramesSpec>::of(device);
  const bool is_shared = in_shared_memory(call, device);
  if (is_shared)
    launch_in_shared(call, device, stream);
  else if (args.events > 0)
    kernels.get(add_spec(call, Pass::add), device)
        .launch({blocks_of(args.events, events_of_block), 1, 1}, threads, 0, stream, &args, sizeof args);
  if (!has_second_pass(call.values) || (is_shared && call.values == Values::voxel)) return;
  kernels.get(finish_spec(call), device)
      .launch({blocks_of(args.samples * args.cells, threads), 1, 1}, threads, 0, stream, &args, sizeof args);
}

}  // namespace spikeforge::frames
