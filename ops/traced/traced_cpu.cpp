#include <spikeforge/cpu/compiled_tapes.h>
#include <spikeforge/cpu/traced_kernels.h>
#include <spikeforge/ops/neuron/cpu_tiles.h>
#include <spikeforge/ops/traced/prepare.h>
#include <spikeforge/runtime/kernel_recorder.h>

#include <torch/library.h>

#include <algorithm>

namespace spikeforge::ops {
namespace {

template <class Launch>
void run(const Launch& launch, const cpu::TracedProgram& program, const cpu::TapeFunctions& functions,
         std::int64_t largest_tile,
         std::size_t (*scratch_bytes)(const Launch&, const cpu::TracedProgram&, std::int64_t),
         void (*kernel)(const Launch&, const cpu::TracedProgram&, const cpu::TapeFunctions&, std::int64_t, std::int64_t,
                        void*)) {
  const Tiles tiles = tiles_of(launch.neurons, launch.steps, largest_tile);
  run_tiles(tiles, scratch_bytes(launch, program, tiles.size),
            [&](std::int64_t begin, std::int64_t end, void* scratch) {
              kernel(launch, program, functions, begin, end, scratch);
            });
}

TracedResults forward_cpu(const TracedArguments& args, bool save) {
  const auto prepared = prepare(args);
  TracedResults results = allocate_forward(args, prepared, save);
  for (const at::Tensor& output : results.outputs) want_large_pages(output);
  for (const at::Tensor& state : results.states) want_large_pages(state);
  const TracedForwardCall call(args, prepared, results);
  runtime::note(call.launch);
  const cpu::TracedProgram& program = cpu::program_of(*prepared.cell);
  const cpu::TracedKernels& kernels = cpu::traced_kernels();
  const cpu::TapeFunctions functions = cpu::compiled_forward(*prepared.cell, call.launch.type);
  run(call.launch, program, functions, program.forward_tile(call.launch.type), kernels.forward_scratch,
      kernels.forward);
  return results;
}

Tensors backward_cpu(const TracedBackwardArguments& args) {
  const auto prepared = prepare(args);
  check_backward(args, prepared);
  const TracedGradients gradients = allocate_backward(args, prepared);
  for (const at::Tensor& grad : gradients.inputs) want_large_pages(grad);
  const TracedBackwardCall call(args, prepared, gradients);
  runtime::note(call.launch);
  const cpu::TracedProgram& program = cpu::program_of(*prepared.cell);
  const cpu::TracedKernels& kernels = cpu::traced_kernels();
  const std::int64_t segment = std::min(call.launch.steps, call.launch.checkpoint_length);
  const auto any = [](const auto& pointers) {
    return std::ranges::any_of(pointers, [](void* p) { return p != nullptr; });
  };
  const cpu::TapeFunctions functions = cpu::compiled_backward(
      *prepared.cell, call.launch.type, any(call.launch.grad_inputs), any(call.launch.grad_params));
  run(call.launch, program, functions, program.backward_tile(call.launch.type, segment), kernels.backward_scratch,
      kernels.backward);
  return reduce_and_list(args, gradients);
}

TORCH_LIBRARY_IMPL(spikeforge, CPU, library) {
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<forward_cpu>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward_cpu>));
}

}  // namespace
}  // namespace spikeforge::ops
