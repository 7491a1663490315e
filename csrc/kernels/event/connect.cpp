#include "csrc/kernels/event/connect.h"
#include "csrc/jit/spec_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace spikeforge::event {
namespace {

constexpr Place block = 256, blocks_a_multiprocessor = 8;

Place threads_of(ConnectStep step, const ConnectArguments& args) {
  switch (step) {
    case ConnectStep::count_lines:
    case ConnectStep::count_rows:
    case ConnectStep::place_rows: return args.total;
    case ConnectStep::count_places: return args.lines.count;
    case ConnectStep::draw:
    case ConnectStep::sort: return args.lines.count * block;
    default: return args.lines.count * 32;
  }
}

}  // namespace

ConnectSpec spec_of(ConnectStep step, NumberType type) {
  return {.step = step, .type = step == ConnectStep::numbers ? type : NumberType::f16};
}

jit::KernelSource print_source(const ConnectSpec& spec) {
  constexpr const char* steps[] = {"count_lines", "count_places", "draw",   "count_rows",
                                   "place_rows",  "sort",         "numbers"};
  constexpr const char* types[] = {"f16", "bf16", "float", "double", "unsigned char", "int"};
  std::string function = steps[static_cast<int>(spec.step)];
  const std::string name = "connect_" + function;
  if (spec.step == ConnectStep::numbers) function += fmt::format("<{}>", types[static_cast<int>(spec.type)]);
  return {.name = name,
          .entry = name,
          .text = fmt::format(R"(#include <spikeforge/cuda/event/connect.cuh>

using namespace spikeforge;

extern "C" __global__ void __launch_bounds__({block}) {name}(const __grid_constant__ event::ConnectArguments args) {{
  event::{function}(args);
}}
)",
                              fmt::arg("block", block), fmt::arg("name", name), fmt::arg("function", function))};
}

void launch_connect_step(ConnectStep step, const ConnectArguments& args, const jit::Device& device, void* stream) {
  const Place blocks = std::clamp<Place>((threads_of(step, args) + block - 1) / block, 1,
                                         blocks_a_multiprocessor * device.multiprocessors);
  const ConnectSpec spec = spec_of(step, args.type);
  jit::SpecTable<ConnectSpec>::of(device)
      .get(spec, device)
      .launch({static_cast<unsigned>(blocks), 1, 1}, block, 0, stream, &args, sizeof args);
}

}  // namespace spikeforge::event
