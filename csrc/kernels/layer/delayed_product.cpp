#include "csrc/kernels/layer/delayed_product.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <limits>

namespace spikeforge::layers {
namespace {

struct DelayedSpec {
  int pass, type, taps;

  bool operator==(const DelayedSpec&) const = default;
};

DelayedSpec spec_of(const DelayedKernel& kernel) {
  return {static_cast<int>(kernel.pass), static_cast<int>(kernel.type), kernel.taps};
}

// The steps of a strip, which stay in registers with their operands.
constexpr int strip_of(DType type) { return type == DType::f64 ? 4 : 8; }

// Returns the columns per warp for sums: a warp reads its row once for all of them, and stores their sums in registers.
int columns_of(const DelayedSpec& spec) { return spec.taps > 4 ? 2 : 4; }

// Returns the minimum number of blocks per multiprocessor: sums of many taps need the registers of a second block.
int blocks_at_once(const DelayedSpec& spec) {
  const bool adds = spec.pass == static_cast<int>(DelayedPass::add);
  return adds || (spec.taps <= 2 && static_cast<DType>(spec.type) == DType::f32) ? 2 : 1;
}

jit::KernelSource print_source(const DelayedSpec& spec) {
  const char* const pass = spec.pass == static_cast<int>(DelayedPass::add) ? "add" : "sums";
  const auto type = static_cast<DType>(spec.type);
  return {.name = fmt::format("delayed_{}", pass),
          .entry = "spikeforge_delayed",
          .text = fmt::format(R"(#include <spikeforge/cuda/layer/delayed_product.cuh>

using namespace spikeforge;

extern "C" __global__ void __launch_bounds__({}, {}) spikeforge_delayed(
    const __grid_constant__ layers::DelayedArguments args) {{
  layers::DelayedProduct<{}, {}, {}, {}>::{}(args);
}}
)",
                              delayed_threads, blocks_at_once(spec), cuda_name(type), spec.taps, strip_of(type),
                              columns_of(spec), pass)};
}

std::int64_t groups_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

std::int64_t strips_of(const DelayedLaunch& call) {
  return groups_of(call.steps, strip_of(call.kernel.type)) * call.lanes;
}

// Distributes a block's warps over rows, as long as there are enough blocks to fill a large device.
struct Deal {
  std::int64_t rows_at_once, row_blocks, blocks;

  explicit Deal(const DelayedLaunch& call) {
    constexpr std::int64_t enough = 128;
    const bool adds = call.kernel.pass == DelayedPass::add;
    const std::int64_t groups = groups_of(strips_of(call), 32);
    const std::int64_t beside =
        adds ? groups : groups_of(call.columns, columns_of(spec_of(call.kernel)));  // blocks of the same rows
    const std::int64_t most_parts = adds ? call.columns : groups;
    const auto of = [&](std::int64_t rows) { return groups_of(call.rows_count, rows) * beside; };
    rows_at_once = delayed_warps;
    while (rows_at_once > 1 && delayed_warps / rows_at_once < most_parts &&
           (of(rows_at_once) < enough || rows_at_once / 2 >= call.rows_count))
      rows_at_once /= 2;
    row_blocks = groups_of(call.rows_count, rows_at_once);
    blocks = of(rows_at_once);
  }
};

}  // namespace

std::int64_t delayed_margin(DType type, std::int64_t lanes) { return (strip_of(type) - 1) * lanes; }

bool can_launch(const DelayedLaunch& call) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() - std::int64_t{delayed_threads};
  return call.rows_count <= most && call.columns <= most && call.steps <= most && call.lanes <= most &&
         strips_of(call) <= most && Deal(call).blocks <= most;
}

DelayedGrid grid_of(const DelayedLaunch& call) {
  const Deal deal(call);
  const auto number = [](std::int64_t n) { return static_cast<int>(n); };
  return {.arguments = {.shifts = call.shifts,
                        .coefficients = call.coefficients,
                        .in = call.in,
                        .rows = call.rows,
                        .out = call.out,
                        .in_stride = call.in_stride,
                        .in_of_row = call.in_of_row,
                        .rows_stride = call.rows_stride,
                        .rows_count = number(call.rows_count),
                        .columns = number(call.columns),
                        .steps = number(call.steps),
                        .lanes = number(call.lanes),
                        .strips = static_cast<unsigned>(strips_of(call)),
                        .row_blocks = static_cast<unsigned>(deal.row_blocks),
                        .rows_at_once = number(deal.rows_at_once)},
          .blocks = static_cast<unsigned>(deal.blocks)};
}

jit::KernelSource source_of(const DelayedKernel& kernel) { return print_source(spec_of(kernel)); }

void launch_delayed_product(const DelayedLaunch& call, const jit::Device& device, void* stream) {
  const jit::LoadedKernel& kernel = jit::SpecTable<DelayedSpec>::of(device).get(spec_of(call.kernel), device);
  const DelayedGrid grid = grid_of(call);
  kernel.launch({grid.blocks, 1, 1}, delayed_threads, 0, stream, &grid.arguments, sizeof grid.arguments);
}

}  // namespace spikeforge::layers
