#include <spikeforge/cpu/kernels.h>
#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/prepare.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace spikeforge::ops {
namespace {

// Neurons a tile: long enough that rows stream from memory, short enough that the rows of a segment, its states and its
// inputs, stay in the second-level cache (1 MiB here). LIF, float32, T=16, N=2^20 on one Zen 4 core, in copies of as
// many bytes: forward 1.07, 1.07 and 1.27 for tiles of 2048, 4096, 8192; backward 1.61, 1.62 and 1.97 for 1024, 2048,
// 4096.
constexpr std::int64_t forward_tile = 4096;
constexpr std::int64_t backward_tile = 2048;
// Neurons times steps below which a second thread costs more than it brings.
constexpr std::int64_t parallel_work = 32768;
// Tiles end on whole cache lines and vectors.
constexpr std::int64_t granule = 64;

// Bytes from which a result asks for large pages: glibc keeps the pages of smaller ones from call to call. LIF, T=16,
// N=2^20 (64 MiB) by the default malloc, in copies of as many bytes: inference 7.2 without and 1.9 to 2.7 with them,
// training 7.5 and 2.0. Where memory is fragmented, the first calls wait for the system to make large pages: 0.15 s for
// 64 MiB.
constexpr std::size_t large_result = std::size_t{32} << 20;

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

// As many tiles for each thread, of about the same size.
std::int64_t tile_size(const MultistepLaunch& launch, std::int64_t largest) {
  if (launch.neurons * std::max<std::int64_t>(launch.steps, 1) < parallel_work) return launch.neurons;
  const auto ceil_divide = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t share = ceil_divide(launch.neurons, at::get_num_threads());
  return ceil_divide(ceil_divide(share, ceil_divide(share, largest)), granule) * granule;
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

// Most of the time of a large result can go to the first touch of its pages, 4 KiB at a time. Asks for larger ones
// before that; where it is refused, nothing is lost.
void want_large_pages(const at::Tensor& result) {
#if defined(MADV_HUGEPAGE)
  if (!result.defined() || result.nbytes() < large_result) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const first = static_cast<char*>(result.mutable_data_ptr());
  const std::size_t skipped = (page - reinterpret_cast<std::uintptr_t>(first) % page) % page;
  madvise(first + skipped, (result.nbytes() - skipped) / page * page, MADV_HUGEPAGE);
#endif
}

ForwardResults forward_cpu(const NeuronArguments& args, bool save) {
  const Prepared prepared = prepare(args);
  ForwardResults results = allocate_forward(args, prepared, save);
  want_large_pages(results.spikes);
  for (const at::Tensor& state : results.states) want_large_pages(state);
  Copies copies;
  const ForwardLaunch launch = forward_launch(args, prepared, results, copies);
  run_tiles(launch, forward_tile, cpu::kernels().forward_scratch, cpu::kernels().forward);
  return results;
}

std::vector<at::Tensor> backward_cpu(const BackwardArguments& args) {
  const Prepared prepared = prepare(args);
  check_backward(args, prepared);
  BackwardResults results = allocate_backward(args, prepared);
  allocate_grad_params(args, prepared, results);
  want_large_pages(results.grad_x);
  Copies copies;
  const BackwardLaunch launch = backward_launch(args, prepared, results, copies);
  run_tiles(launch, backward_tile, cpu::kernels().backward_scratch, cpu::kernels().backward);
  return reduce_and_list(args, results);
}

TORCH_LIBRARY_IMPL(spikeforge, CPU, library) { register_lowered<forward_cpu, backward_cpu>(library); }

}  // namespace
}  // namespace spikeforge::ops
