#include "csrc/kernels/frames/frames.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace spikeforge::frames {
namespace {

constexpr unsigned threads = 256;
constexpr Int events_of_block = 2048;

enum class Pass : int { add, finish };

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
  const bool adds = spec.pass == Pass::add;
  const std::string kernel =
      adds ? fmt::format("add_events<Values::{}, {}, {}, {}, {}, {}, {}>", values[static_cast<int>(spec.values)],
                         columns[spec.t], columns[spec.x], columns[spec.y], columns[spec.p], number, events_of_block)
           : fmt::format("finish<Values::{}, {}, {}>", values[static_cast<int>(spec.values)], columns[spec.t], number);
  return {.name = adds ? "event_frames" : "event_frames_finish",
          .entry = "spikeforge_frames",
          .text = fmt::format(R"(#include <spikeforge/cuda/frames/frames.cuh>

using namespace spikeforge;
using namespace spikeforge::frames;

extern "C" __global__ void __launch_bounds__({}) spikeforge_frames(const __grid_constant__ {} args) {{
  {}(args);
}}
)",
                              threads, adds ? "FramesArguments" : "FinishArguments", kernel)};
}

FramesSpec add_spec(const FramesLaunch& call) {
  const auto of = [](Column column) { return static_cast<int>(column); };
  const DType number = has_second_pass(call.values) ? DType::f32 : call.type;
  return {Pass::add,          call.values,        of(call.columns.t),      of(call.columns.x),
          of(call.columns.y), of(call.columns.p), static_cast<int>(number)};
}

FramesSpec finish_spec(const FramesLaunch& call) {
  return {Pass::finish, call.values, static_cast<int>(call.columns.t), 0, 0, 0, static_cast<int>(call.type)};
}

unsigned blocks_of(Int items, Int of_block) { return static_cast<unsigned>((items + of_block - 1) / of_block); }

}  // namespace

std::vector<jit::KernelSource> sources_of(const FramesLaunch& call) {
  std::vector<jit::KernelSource> sources{print_source(add_spec(call))};
  if (has_second_pass(call.values)) sources.push_back(print_source(finish_spec(call)));
  return sources;
}

void launch_frames(const FramesLaunch& call, const jit::Device& device, void* stream) {
  auto& kernels = jit::SpecTable<FramesSpec>::of(device);
  const FramesArguments& args = call.arguments;
  if (args.events > 0)
    kernels.get(add_spec(call), device)
        .launch({blocks_of(args.events, events_of_block), 1, 1}, threads, 0, stream, &args, sizeof args);
  if (!has_second_pass(call.values)) return;
  const FinishArguments finish{args, call.numbers};
  kernels.get(finish_spec(call), device)
      .launch({blocks_of(args.samples * args.cells, threads), 1, 1}, threads, 0, stream, &finish, sizeof finish);
}

}  // namespace spikeforge::frames
