// Lists the neurons that fired, from spikes in memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spikeforge::ops {

// Calls f(i) for each i in [first, last) with spikes[i] > 0, in ascending order. A block without spikes, the most
// frequent case, costs one or two vector comparisons.
template <class T, class F> void for_each_fired(const T* spikes, std::int64_t first, std::int64_t last, F&& f) {
  constexpr std::int64_t block = 64;
  for (; first < last; first += block) {
    const std::int64_t end = std::min(first + block, last);
    int any = 0;
    for (std::int64_t i = first; i < end; ++i) any |= spikes[i] > 0 ? 1 : 0;
    if (any == 0) continue;
    for (std::int64_t i = first; i < end; ++i)
      if (spikes[i] > 0) f(i);
  }
}

}  // namespace spikeforge::ops
