#include "csrc/kernels/multistep/channel_sums.h"
#include "csrc/jit/spec_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace spikeforge::kernels {
namespace {

struct ChannelSumsSpec {
  DType type{};

  bool operator==(const ChannelSumsSpec&) const = default;
};

jit::KernelSource print_source(const ChannelSumsSpec& spec) { return print_channel_sums(spec.type); }

// Return the channels per block, the blocks along the channels, and the elements of an outer row that a block sums.
std::int64_t channels_of_a_block(const PartialSums& sizes) { return sizes.inner == 1 ? channels_side_by_side : 1; }
std::int64_t blocks_of(const PartialSums& sizes) {
  return (sizes.count + channels_of_a_block(sizes) - 1) / channels_of_a_block(sizes);
}
std::int64_t width_of(const PartialSums& sizes) { return channels_of_a_block(sizes) * sizes.inner; }

}  // namespace

PartialSums partial_sums(const BackwardLaunch& launch, const ParamView& param, const Schedule& schedule,
                         std::int64_t at_once) {
  if (param.data == nullptr || launch.neurons == 0 || (param.count > 1 && param.count == launch.neurons)) return {};
  const std::int64_t each = shared_by_warps(param, schedule) ? neurons_of_a_warp(schedule) : 1;
  if (param.count == 1) return {1, 1, (at_once + each - 1) / each};
  return {at_once / (param.inner * param.count), param.count, param.inner / each};
}

std::int64_t parts_of(const PartialSums& sizes, std::size_t sums, int multiprocessors) {
  constexpr std::int64_t blocks_each = 2, least = 8 * 1024;  // blocks per multiprocessor; elements per block
  const std::int64_t blocks = blocks_of(sizes) * static_cast<std::int64_t>(sums);
  const std::int64_t most = std::min(sizes.outer, sizes.outer * width_of(sizes) / least);
  return std::clamp<std::int64_t>(blocks_each * multiprocessors / blocks, 1, std::max<std::int64_t>(most, 1));
}

void launch_channel_sums(const ChannelSums& sums, DType type, const jit::Device& device, void* stream) {
  const jit::LoadedKernel& kernel = jit::SpecTable<ChannelSumsSpec>::of(device).get({type}, device);
  const PartialSums& sizes = sums.sizes;
  const std::int64_t rows = (sizes.outer + sums.parts - 1) / sums.parts;
  ChannelSumsArgs arguments{
      .outer = sizes.outer, .count = sizes.count, .inner = sizes.inner, .rows = rows, .from = {}, .to = {}};
  std::ranges::copy(sums.from, arguments.from);
  std::ranges::copy(sums.to, arguments.to);
  // Eight values per thread at a time.
  const auto threads =
      std::clamp<std::uint64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows * width_of(sizes) / 8)), 64, 1024);
  kernel.launch(
      {static_cast<unsigned>(blocks_of(sizes)), static_cast<unsigned>(sums.count), static_cast<unsigned>(sums.parts)},
      static_cast<unsigned>(threads), 0, stream, &arguments, sizeof arguments);
}

jit::KernelSource print_channel_sums(DType type) {
  const char* const number = type == DType::f64 ? "double" : "float";
  return {.name = "channel_sums",
          .entry = "spikeforge_channel_sums",
          .text = fmt::format(R"(#include <spikeforge/cuda/multistep/channel_sums.cuh>

extern "C" __global__ void __launch_bounds__(1024) spikeforge_channel_sums(
    const __grid_constant__ spikeforge::ChannelSumsArgs args) {{
  spikeforge::ChannelSums<{}>::run(args);
}}
)",
                              number)};
}

}  // namespace spikeforge::kernels
