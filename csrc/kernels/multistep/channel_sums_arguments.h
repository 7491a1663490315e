// Arguments of cuda/multistep/channel_sums.cuh. Read by the host's compiler and by NVRTC alike.
#pragma once

namespace spikeforge {

// Channels that a block adds up, where each has one value of a row and neighbours lie side by side; else it is one.
constexpr int channels_side_by_side = 8;
constexpr int most_channel_sums = 8;  // of a launch

struct ChannelSumsArgs {
  long long outer, count, inner;
  long long rows;                       // of a block along z
  const void* from[most_channel_sums];  // one for each block along y
  void* to[most_channel_sums];
};

}  // namespace spikeforge
