#include <spikeforge/cpu/traced_kernels.h>
#include <spikeforge/ops/traced/prepare.h>

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <algorithm>

namespace spikeforge::ops {
namespace {

// Neurons times steps below which a second thread costs more than it brings.
constexpr std::int64_t parallel_work = 32768;
// Tiles end on whole cache lines and vectors.
constexpr std::int64_t granule = 64;

std::int64_t tile_size(const TracedLaunch& launch, std::int64_t largest) {
  std::int64_t share = launch.neurons;
  if (launch.neurons * std::max<std::int64_t>(launch.steps, 1) >= parallel_work)
    share = (launch.neurons + at::get_num_threads() - 1) / at::get_num_threads();
  return std::min(largest, (share + granule - 1) / granule * granule);
}

template <class Launch>
void run_tiles(const Launch& launch, const cpu::TracedProgram& program, std::int64_t largest_tile,
               std::size_t (*scratch_bytes)(const Launch&, const cpu::TracedProgram&, std::int64_t),
               void (*kernel)(const Launch&, const cpu::TracedProgram&, std::int64_t, std::int64_t, void*)) {
  if (launch.neurons == 0) return;
  const std::int64_t tile = tile_size(launch, largest_tile);
  const std::int64_t tiles = (launch.neurons + tile - 1) / tile;
  const std::size_t bytes = scratch_bytes(launch, program, tile);
  const bool alone = launch.neurons * std::max<std::int64_t>(launch.steps, 1) < parallel_work;
  at::parallel_for(0, tiles, alone ? tiles : 1, [&](std::int64_t first, std::int64_t last) {
    const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(bytes);
    for (std::int64_t t = first; t < last; ++t)
      kernel(launch, program, t * tile, std::min((t + 1) * tile, launch.neurons), scratch.get());
  });
}

TracedResults forward_cpu(const TracedArguments& args, bool save) {
  const auto prepared = prepare(args);
  TracedResults results = allocate_forward(args, prepared, save);
  const TracedForwardCall call(args, prepared, results);
  const cpu::TracedProgram& program = cpu::program_of(*prepared.cell);
  const cpu::TracedKernels& kernels = cpu::traced_kernels();
  run_tiles(call.launch, program, program.forward_tile(call.launch.type), kernels.forward_scratch, kernels.forward);
  return results;
}

Tensors backward_cpu(const TracedBackwardArguments& args) {
  const auto prepared = prepare(args);
  check_backward(args, prepared);
  const TracedGradients gradients = allocate_backward(args, prepared);
  const TracedBackwardCall call(args, prepared, gradients);
  const cpu::TracedProgram& program = cpu::program_of(*prepared.cell);
  const cpu::TracedKernels& kernels = cpu::traced_kernels();
  const std::int64_t segment = std::min(call.launch.steps, call.launch.checkpoint_length);
  run_tiles(call.launch, program, program.backward_tile(call.launch.type, segment), kernels.backward_scratch,
            kernels.backward);
  return reduce_and_list(args, gradients);
}

TORCH_LIBRARY_IMPL(spikeforge, CPU, library) {
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<forward_cpu>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward_cpu>));
}

}  // namespace
}  // namespace spikeforge::ops
