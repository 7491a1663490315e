// The mean and variance of the channels of a tensor on the CPU, in one instruction set.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"

#include <cstdint>

namespace spikeforge::cpu {

// The mean of some elements of a channel, and the sum of the squared differences from it.
struct Moments {
  double mean, squares;
};

inline namespace CPU_CAPABILITY {

// Returns the moments of the union of `a_count` and `b_count` numbers (Chan, Golub and LeVeque 1983).
inline Moments joined(const Moments& a, double a_count, const Moments& b, double b_count) {
  if (a_count == 0) return b;
  if (b_count == 0) return a;
  const double count = a_count + b_count;
  const double difference = b.mean - a.mean, share = b_count / count;
  return {a.mean + difference * share, a.squares + b.squares + difference * difference * a_count * share};
}

}  // namespace CPU_CAPABILITY

// Computes the moments of each channel of x [rows, channels, inner], over its rows and inner elements, into `moments`
// [channels]. Differences from the mean of at most 512 numbers are summed, and the moments are joined in double: E[x^2]
// - E[x]^2 would cancel. The order of additions depends only on the sizes.
struct ChannelStatistics {
  void (*moments)(const void* x, DType type, std::int64_t rows, std::int64_t channels, std::int64_t inner,
                  Moments* moments);
};

SPIKEFORGE_EACH_SET(const ChannelStatistics&, channel_statistics, ());

// Returns the kernels of the widest supported instruction set, as in loops().
const ChannelStatistics& channel_statistics();

}  // namespace spikeforge::cpu
