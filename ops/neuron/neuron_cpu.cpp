#include <spikeforge/cpu/kernels.h>
#include <spikeforge/ops/neuron/cpu_tiles.h>
#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/prepare.h>
#include <spikeforge/runtime/kernel_recorder.h>

namespace spikeforge::ops {
namespace {

// Neurons a tile: long enough that rows stream from memory, short enough that the rows of a segment, its states and its
// inputs, stay in the second-level cache (1 MiB here). LIF, float32, T=16, N=2^20 on one Zen 4 core, in copies of as
// many bytes: forward 1.07, 1.07 and 1.27 for tiles of 2048, 4096, 8192; backward 1.61, 1.62 and 1.97 for 1024, 2048,
// 4096.
constexpr std::int64_t forward_tile = 4096;
constexpr std::int64_t backward_tile = 2048;
template <class Launch>
void run(const Launch& launch, std::int64_t largest_tile, std::size_t (*scratch_bytes)(const Launch&, std::int64_t),
         void (*kernel)(const Launch&, std::int64_t, std::int64_t, void*)) {
  const Tiles tiles = tiles_of(launch.neurons, launch.steps, largest_tile);
  run_tiles(tiles, scratch_bytes(launch, tiles.size),
            [&](std::int64_t begin, std::int64_t end, void* scratch) { kernel(launch, begin, end, scratch); });
}

ForwardResults forward_cpu(const NeuronArguments& args, bool save) {
  const Prepared prepared = prepare(args);
  ForwardResults results = allocate_forward(args, prepared, save);
  want_large_pages(results.spikes);
  for (const at::Tensor& state : results.states) want_large_pages(state);
  Copies copies;
  const ForwardLaunch launch = forward_launch(args, prepared, results, copies);
  runtime::note(launch);
  run(launch, forward_tile, cpu::kernels().forward_scratch, cpu::kernels().forward);
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
  runtime::note(launch);
  run(launch, backward_tile, cpu::kernels().backward_scratch, cpu::kernels().backward);
  return reduce_and_list(args, results);
}

TORCH_LIBRARY_IMPL(spikeforge, CPU, library) { register_lowered<forward_cpu, backward_cpu>(library); }

}  // namespace
}  // namespace spikeforge::ops
