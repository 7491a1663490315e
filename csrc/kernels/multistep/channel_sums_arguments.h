// Arguments of cuda/multistep/channel_sums.cuh, for the host compiler and NVRTC.
#pragma once

namespace spikeforge {

// The channels per block if each channel has one value per row; otherwise, a block sums one channel.
constexpr int channels_side_by_side = 8;
constexpr int most_channel_sums = 8;  // per launch

struct ChannelSumsArgs {
  long long outer, count, inner;
  long long rows;                       // per block along z
  const void* from[most_channel_sums];  // one for each block along y
  void* to[most_channel_sums];
};

}  // namespace spikeforge
