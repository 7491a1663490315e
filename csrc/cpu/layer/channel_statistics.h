// Mean and variance of the channels of a tensor on the CPU, in one instruction set.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"

#include <cstdint>

namespace spikeforge::cpu {

// The mean of some of a channel's numbers, and the sum of squared differences from it.
struct Moments {
  double mean, squares;
};

inline namespace CPU_CAPABILITY {

// Those of `a_count` and `b_count` numbers together (Chan, Golub and LeVeque 1983).
inline Moments joined(const Moments& a, double a_count, const Moments& b, double b_count) {
  if (a_count == 0) return b;
  if (b_count == 0) return a;
  const double count = a_count + b_count;
  const double difference = b.mean - a.mean, share = b_count / count;
  return {a.mean + difference * share, a.squares + b.squares + difference * difference * a_count * share};
}

}  // namespace CPU_CAPABILITY

// The moments of each channel of x [rows, channels, inner], over its rows and inner elements, into `moments`
// [channels]. Sums are of differences from the mean of at most 512 numbers, and those are joined in double: no E[x^2] -
// E[x]^2, which cancels. The order of additions depends on the sizes alone.
struct ChannelStatistics {
  void (*moments)(const void* x, DType type, std::int64_t rows, std::int64_t channels, std::int64_t inner,
                  Moments* moments);
};

SPIKEFORGE_EACH_SET(const ChannelStatistics&, channel_statistics, ());

// The kernels of the widest supported instruction set, as in loops().
const ChannelStatistics& channel_statistics();

}  // namespace spikeforge::cpu
