#include "ops/multistep/cpu_tiles.h"

#include <algorithm>
#include <functional>

namespace spikeforge::ops {
namespace {

Tiles tiles_of_call(const Launch& launch, const cpu::Program& program) {
  if (launch.lengths.data != nullptr)
    return tiles_of_lengths(launch.lengths, launch.neurons, launch.steps, program.largest_tile);
  return tiles_of(launch.neurons, launch.steps, program.largest_tile);
}

}  // namespace

MultistepResults forward_cpu(const MultistepCall& call, bool save) {
  const Prepared prepared = prepare(call);
  check_lengths(call);
  MultistepResults results = allocate_forward(call, prepared, save);
  const DescribedForward described(call, prepared, results);
  kernels::note(described.launch);
  if (described.launch.packed.bits != 0) *described.launch.packed.valid = 1;
  const bool is_nothing = call.store_states && prepared.layout.steps == 0;  // all results are empty
  if (!is_nothing && !(described.launch.scan && scan_cpu(described.launch))) {
    const cpu::Program program = cpu::program_of(described.launch);
    run_tiles(call, tiles_of_call(described.launch, program), described.launch, program, program.loop.forward_scratch,
              program.loop.forward);
  }
  described.pack_rest(results);
  return results;
}

Tensors backward_cpu(const BackwardCall& call) {
  const Prepared prepared = prepare(call);
  const Gradients gradients = check_and_allocate(call, prepared);
  const DescribedBackward described(call, prepared, gradients);
  kernels::note(described.launch);
  const auto* const of_states = call.needs_grad.begin() + call.inputs.size();
  if (prepared.layout.steps == 0 && std::none_of(of_states, call.needs_grad.end(), std::identity()))
    return reduce_and_list(call, gradients);
  const cpu::Program program = cpu::program_of(described.launch);
  run_tiles(call, tiles_of_call(described.launch, program), described.launch, program, program.loop.backward_scratch,
            program.loop.backward);
  return reduce_and_list(call, gradients);
}

}  // namespace spikeforge::ops
