#include "ops/multistep/cpu_tiles.h"

namespace spikeforge::ops {
namespace {

// The minimum of neurons times steps per thread. Measured for LIF, in microseconds with one thread and with two:
//   T=16,   N=2^12   inference 16 and 14   training 117 and 106
//   T=16,   N=2^13   inference 28 and 17   training 186 and 142
//   T=1000, N=128    inference 28 and 44   training 152 and 176
constexpr std::int64_t least_share = 65536;
constexpr std::int64_t granule = 64;
// The maximum number of neurons in a tile of several samples. More neurons reduce the cost of a step per neuron, but
// more samples divide the tile into more pieces.
constexpr std::int64_t most_together = 2048;
constexpr std::int64_t samples_together = 32;
constexpr std::int64_t least_together = 128;

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t threads_for(std::int64_t neurons, std::int64_t steps) {
  return std::clamp<std::int64_t>(neurons * std::max<std::int64_t>(steps, 1) / least_share, 1, at::get_num_threads());
}

std::int64_t length_of(const LengthsView& lengths, std::int64_t sample) { return lengths.data[sample % lengths.count]; }

// Returns tiles of at most `most` samples. A tile also ends at the end of a thread's share of all steps.
Tiles tiles_of_several(const LengthsView& lengths, std::int64_t neurons, std::int64_t total, std::int64_t most) {
  const std::int64_t samples = neurons / lengths.inner, threads = threads_for(lengths.inner, total);
  Tiles tiles{neurons, 0, 0, threads == 1};
  std::int64_t begin = 0, done = 0, shares = 1;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t length = length_of(lengths, i);
    // A sample across the boundary of two shares is assigned to the thread with the larger part.
    if (i > begin && (i - begin == most || (shares < threads && (2 * done + length) * threads > 2 * shares * total))) {
      tiles.ends.push_back(i * lengths.inner);
      begin = i;
    }
    while (shares < threads && (2 * done + length) * threads > 2 * shares * total) ++shares;
    done += length;
  }
  tiles.ends.push_back(neurons);
  tiles.count = static_cast<std::int64_t>(tiles.ends.size());
  for (std::int64_t i = 0; i < tiles.count; ++i) tiles.size = std::max(tiles.size, tiles.end(i) - tiles.begin(i));
  return tiles;
}

// Divides the neurons of each sample into tiles of about the same size.
Tiles tiles_of_one(std::int64_t inner, std::int64_t neurons, std::int64_t total, std::int64_t largest) {
  const std::int64_t size = ceil_divide(ceil_divide(inner, ceil_divide(inner, largest)), granule) * granule;
  Tiles tiles{neurons, std::min(size, inner), 0, threads_for(inner, total) == 1};
  for (std::int64_t begin = 0; begin < neurons; begin += inner)
    for (std::int64_t end = size; end < inner + size; end += size) tiles.ends.push_back(begin + std::min(end, inner));
  tiles.count = static_cast<std::int64_t>(tiles.ends.size());
  return tiles;
}

}  // namespace

Tiles tiles_of(std::int64_t neurons, std::int64_t steps, std::int64_t largest) {
  if (neurons == 0) return {0, granule, 0, true};
  const std::int64_t threads = threads_for(neurons, steps);
  const std::int64_t share = ceil_divide(neurons, threads);
  const std::int64_t size = ceil_divide(ceil_divide(share, ceil_divide(share, largest)), granule) * granule;
  return {neurons, std::min(size, neurons), ceil_divide(neurons, size), threads == 1};
}

Tiles tiles_of_samples(std::int64_t samples, std::int64_t width, std::int64_t steps, std::int64_t largest) {
  const std::int64_t neurons = samples * width;
  if (neurons == 0) return {0, granule, 0, true};
  const std::int64_t threads = std::min(threads_for(neurons, steps), samples);
  const std::int64_t share = ceil_divide(samples, threads);
  const std::int64_t size = ceil_divide(share, ceil_divide(share, largest));
  return {neurons, size * width, ceil_divide(samples, size), threads == 1};
}

Tiles tiles_of_lengths(const LengthsView& lengths, std::int64_t neurons, std::int64_t steps, std::int64_t largest) {
  if (neurons == 0 || neurons % lengths.inner != 0) return tiles_of(neurons, steps, largest);
  std::int64_t total = 0;  // the steps of all samples
  for (std::int64_t i = 0; i < neurons / lengths.inner; ++i) total += length_of(lengths, i);
  const std::int64_t most = std::max(std::min(std::min(most_together, largest) / lengths.inner, samples_together),
                                     least_together / lengths.inner);
  return most > 1 ? tiles_of_several(lengths, neurons, total, most)
                  : tiles_of_one(lengths.inner, neurons, total, largest);
}

}  // namespace spikeforge::ops
