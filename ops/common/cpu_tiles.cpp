#include <spikeforge/ops/common/cpu_tiles.h>

#include <cstdlib>
#include <memory>

namespace spikeforge::ops {
namespace {

// Neurons times steps for which a further thread is woken. LIF, T=16, one thread and two, in microseconds: N=2^12 16
// and 14 in inference, 117 and 106 in training, N=2^13 28 and 17, 186 and 142; T=1000, N=128 28 and 44, 152 and 176.
constexpr std::int64_t least_share = 65536;
constexpr std::int64_t granule = 64;
// Neurons of a tile of several samples, which goes on to the end of the longest.
constexpr std::int64_t least_of_samples = 128;

class ThreadScratch {
 public:
  void* get(std::size_t bytes) {
    if (bytes > size_) {
      size_ = 0;
      memory_.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
      TORCH_CHECK(memory_ != nullptr, "spikeforge: out of memory for ", bytes, " bytes of scratch");
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t size_ = 0;
};

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t threads_for(std::int64_t neurons, std::int64_t steps) {
  return std::clamp<std::int64_t>(neurons * std::max<std::int64_t>(steps, 1) / least_share, 1, at::get_num_threads());
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

Tiles tiles_of_lengths(std::int64_t neurons, std::int64_t sample, std::int64_t steps, std::int64_t largest) {
  if (neurons == 0 || neurons % sample != 0) return tiles_of(neurons, steps, largest);
  const bool one_thread = threads_for(neurons, steps) == 1;
  const std::int64_t together = std::max<std::int64_t>(least_of_samples / sample, 1);
  if (together > 1) {
    const std::int64_t size = std::min(together * sample, neurons);
    return {neurons, size, ceil_divide(neurons, size), one_thread};
  }
  const std::int64_t size = ceil_divide(ceil_divide(sample, ceil_divide(sample, largest)), granule) * granule;
  return {neurons, size, neurons / sample * ceil_divide(sample, size), one_thread, sample};
}

void* thread_scratch(std::size_t bytes) {
  thread_local ThreadScratch scratch;
  return scratch.get(bytes);
}

}  // namespace spikeforge::ops
