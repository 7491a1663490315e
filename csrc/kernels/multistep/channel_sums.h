// The second part of a parameter's gradient on a GPU: sums over the neurons that share the parameter. The summands are
// the partial sums of the backward kernel, one per neuron or per warp.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/multistep/channel_sums_arguments.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/kernels/multistep/schedule.h"

#include <array>
#include <cstdint>

namespace spikeforge::kernels {

// The backward kernel's sums of a parameter's gradient, [outer, count, inner].
struct PartialSums {
  std::int64_t outer = 0, count = 0, inner = 0;

  std::int64_t size() const { return outer * count * inner; }
  bool operator==(const PartialSums&) const = default;
};

// Returns the sizes of the partial sums: 0 for a scalar, and for a parameter with a value per neuron.
PartialSums partial_sums(const BackwardLaunch& launch, const ParamView& param, const Schedule& schedule,
                         std::int64_t at_once);

// Returns the number of blocks that share the outer rows if there are too few channels to occupy a device. If it is
// more than one, each block writes separate sums, which are then summed with sizes [parts, count, 1].
std::int64_t parts_of(const PartialSums& sizes, std::size_t sums, int multiprocessors);

// `count` sums of the same sizes and of the compute type. The device and the stream are as in launch_multistep().
struct ChannelSums {
  static constexpr std::size_t most = most_channel_sums;
  PartialSums sizes;
  std::int64_t parts = 1;
  std::size_t count = 0;
  std::array<const void*, most> from{};
  std::array<void*, most> to{};  // [parts, sizes.count] each
};
void launch_channel_sums(const ChannelSums& sums, DType type, const jit::Device& device, void* stream);

jit::KernelSource print_channel_sums(DType type);

}  // namespace spikeforge::kernels
