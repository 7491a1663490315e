#include <spikeforge/cpu/kernels.h>
#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/prepare.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace spikeforge::ops {
namespace {

// Neurons a tile: long enough that rows stream from memory, short enough that a segment's states stay in the
// second-level cache.
constexpr std::int64_t forward_tile = 8192;
constexpr std::int64_t backward_tile = 2048;
// Neurons times steps below which a second thread costs more than it brings.
constexpr std::int64_t parallel_work = 32768;
// Tiles end on whole cache lines and vectors.
constexpr std::int64_t granule = 64;

// Memory that a thread keeps from call to call.
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

  static ThreadScratch& mine() {
    thread_local ThreadScratch scratch;
    return scratch;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t size_ = 0;
};

std::int64_t tile_size(const MultistepLaunch& launch, std::int64_t largest) {
  if (launch.neurons * std::max<std::int64_t>(launch.steps, 1) < parallel_work) return launch.neurons;
  const std::int64_t share = (launch.neurons + at::get_num_threads() - 1) / at::get_num_threads();
  return std::min(largest, (share + granule - 1) / granule * granule);
}

template <class Launch>
void run_tiles(const Launch& launch, std::int64_t largest_tile,
               std::size_t (*scratch_bytes)(const Launch&, std::int64_t),
               void (*kernel)(const Launch&, std::int64_t, std::int64_t, void*)) {
  if (launch.neurons == 0) return;
  const std::int64_t tile = tile_size(launch, largest_tile);
  const std::int64_t tiles = (launch.neurons + tile - 1) / tile;
  const std::size_t bytes = scratch_bytes(launch, tile);
  at::parallel_for(0, tiles, 1, [&](std::int64_t first, std::int64_t last) {
    void* scratch = ThreadScratch::mine().get(bytes);
    for (std::int64_t t = first; t < last; ++t)
      kernel(launch, t * tile, std::min((t + 1) * tile, launch.neurons), scratch);
  });
}

ForwardResults forward_cpu(const NeuronArguments& args, bool save) {
  const Prepared prepared = prepare(args);
  ForwardResults results = allocate_forward(args, prepared, save);
  std::vector<at::Tensor> kept;
  const ForwardLaunch launch = forward_launch(args, prepared, results, kept);
  run_tiles(launch, forward_tile, cpu::kernels().forward_scratch, cpu::kernels().forward);
  return results;
}

std::vector<at::Tensor> backward_cpu(const BackwardArguments& args) {
  const Prepared prepared = prepare(args);
  check_backward(args, prepared);
  BackwardResults results = allocate_backward(args, prepared);
  allocate_grad_params(args, prepared, results);
  std::vector<at::Tensor> kept;
  const BackwardLaunch launch = backward_launch(args, prepared, results, kept);
  run_tiles(launch, backward_tile, cpu::kernels().backward_scratch, cpu::kernels().backward);
  return reduce_and_list(args, results);
}

TORCH_LIBRARY_IMPL(spikeforge, CPU, library) { register_lowered<forward_cpu, backward_cpu>(library); }

}  // namespace
}  // namespace spikeforge::ops
