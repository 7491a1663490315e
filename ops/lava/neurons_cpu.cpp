#include <spikeforge/cpu/loihi_kernels.h>
#include <spikeforge/ops/lava/arguments.h>
#include <spikeforge/runtime/kernel_recorder.h>

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

namespace spikeforge::ops {
namespace {

// Neurons times steps below which a second thread costs more than it brings.
constexpr std::int64_t parallel_neuron_steps = 32768;

std::vector<at::Tensor> forward_cpu(const LoihiArguments& args) {
  const auto prepared = prepare(args);
  check_values(args);
  std::vector<at::Tensor> results = allocate(args, prepared);
  Copies copies;
  const LoihiLaunch launch = describe_launch(args, prepared, results, copies);
  runtime::note(launch);
  const std::int64_t tiles = (launch.neurons + cpu::loihi_tile - 1) / cpu::loihi_tile;
  const std::int64_t grain =
      std::max<std::int64_t>(1, parallel_neuron_steps / (cpu::loihi_tile * std::max<std::int64_t>(launch.steps, 1)));
  at::parallel_for(0, tiles, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t)
      cpu::loihi_kernels().neurons(launch, t * cpu::loihi_tile, std::min((t + 1) * cpu::loihi_tile, launch.neurons));
  });
  return results;
}

TORCH_LIBRARY_IMPL(spikeforge, CPU, library) { library.impl("loihi_forward", TORCH_FN(loihi_kernel<forward_cpu>)); }

}  // namespace
}  // namespace spikeforge::ops
