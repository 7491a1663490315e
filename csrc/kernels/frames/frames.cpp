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

extern "C" __global__ void __launch_bounds__({}) spikeforge_frames(const __grid_constant__ {} args) {{
  {}(args);
}}
)",
                              is_frame ? threads_of_frame : threads, finishes ? "FinishArguments" : "FramesArguments",
                              kernel)};
}

FramesSpec add_spec(const FramesLaunch& call, Pass pass) {
  const auto of = [](Column column) { return static_cast<int>(column); };
  const DType number = has_second_pass(call.values) ? DType::f32 : call.type;
  return {pass,
          call.values,
          of(call.columns.t),
          of(call.columns.x),
          of(call.columns.y),
          of(call.columns.p),
          static_cast<int>(number)};
}

FramesSpec finish_spec(const FramesLaunch& call) {
  return {Pass::finish, call.values, static_cast<int>(call.columns.t), 0, 0, 0, static_cast<int>(call.type)};
}

unsigned blocks_of(Int items, Int of_block) { return static_cast<unsigned>((items + of_block - 1) / of_block); }

// Counters have 16 bits in the first launch, and 32 in the second.
Int shared_bytes_of(const FramesLaunch& call, Pass pass) {
  const Int cells = call.arguments.cells;
  if (call.values == Values::binary) return (cells + 31) / 32 * 4;
  return call.values == Values::count && pass == Pass::frame ? (cells / 2 + 1) * 4 : cells * 4 + 4;
}

void launch_in_shared(const FramesLaunch& call, const jit::Device& device, void* stream) {
  const FramesArguments& args = call.arguments;
  for (const Pass pass : {Pass::frame, Pass::second_frame}) {
    const jit::LoadedKernel& kernel = jit::SpecTable<FramesSpec>::of(device).get(add_spec(call, pass), device);
    kernel.allow_shared(kernels::most_shared_bytes(device), jit::Driver::get().device());
    kernel.launch({static_cast<unsigned>(args.steps * args.samples), 1, 1}, threads_of_frame,
                  static_cast<unsigned>(shared_bytes_of(call, pass)), stream, &args, sizeof args);
  }
}

}  // namespace

std::vector<jit::KernelSource> sources_of(const FramesLaunch& call) {
  std::vector<jit::KernelSource> sources{print_source(add_spec(call, Pass::add))};
  if (has_second_pass(call.values)) {
    sources.push_back(print_source(finish_spec(call)));
  } else {
    for (const Pass pass : {Pass::frame, Pass::second_frame}) sources.push_back(print_source(add_spec(call, pass)));
  }
  return sources;
}

bool in_shared_memory(const FramesLaunch& call, const jit::Device& device) {
  const Int frames = Int{call.arguments.steps} * call.arguments.samples;
  return !has_second_pass(call.values) && 4 * frames >= device.multiprocessors && frames <= Int{1} << 30 &&
         shared_bytes_of(call, Pass::second_frame) <= kernels::most_shared_bytes(device);
}

void launch_frames(const FramesLaunch& call, const jit::Device& device, void* stream) {
  if (call.arguments.samples == 0) return;
  if (in_shared_memory(call, device)) return launch_in_shared(call, device, stream);
  auto& kernels = jit::SpecTable<FramesSpec>::of(device);
  const FramesArguments& args = call.arguments;
  if (args.events > 0)
    kernels.get(add_spec(call, Pass::add), device)
        .launch({blocks_of(args.events, events_of_block), 1, 1}, threads, 0, stream, &args, sizeof args);
  if (!has_second_pass(call.values)) return;
  const FinishArguments finish{args, call.numbers};
  kernels.get(finish_spec(call), device)
      .launch({blocks_of(args.samples * args.cells, threads), 1, 1}, threads, 0, stream, &finish, sizeof finish);
}

}  // namespace spikeforge::frames
