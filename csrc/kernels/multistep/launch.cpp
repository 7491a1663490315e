#include "csrc/kernels/multistep/launch.h"
#include "csrc/base/somewhere.h"
#include "csrc/jit/compile_ahead.h"
#include "csrc/jit/recorder.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/multistep/arguments.h"
#include "csrc/kernels/multistep/channel_sums.h"
#include "csrc/kernels/multistep/plan.h"
#include "csrc/kernels/scan/scan.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace spikeforge::kernels {
namespace {

template <class AnyLaunch>
void launch_any(const AnyLaunch& launch, const jit::Device& device, void* stream, const Allocate& allocate) {
  if (launch.neurons == 0) return;
  if (const auto scan = plan_scan(launch, device.multiprocessors))
    return launch_scan(launch, *scan, device, stream, allocate);
  const auto [schedule, spec, at_once] = plan(launch, device.multiprocessors);
  const Grid grid = grid_of(schedule, at_once, device.multiprocessors);
  // No memory could store the results of so many neurons, so there are no steps, and no results.
  if (grid.blocks > std::numeric_limits<std::int32_t>::max()) return;
  using Tables = jit::SpecTables<KernelSpec, HashOfSpec>;
  const Cell& cell = *launch.cell;
  Tables& tables = cell.loaded_kernels.get<Tables>([] { return Tables(); });
  const jit::LoadedKernel& kernel = tables.of(device).get(spec, device, [&] { prepare_next(launch, device); });
  const Arguments arguments(launch, at_once);
  kernel.launch({static_cast<unsigned>(grid.blocks), 1, 1}, grid.block, 0, stream, arguments.data(), arguments.bytes());
}

// Records additional kernels of a launch.
void note_more(const ForwardLaunch&, const Plan&, const jit::Want&) {}
void note_more(const BackwardLaunch& launch, const Plan& plan, const jit::Want& want) {
  for (std::size_t j = 0; j < launch.params.size(); ++j)
    if (launch.grad_params[j] != nullptr) {
      const PartialSums left = partial_sums(launch, launch.params[j], plan.schedule, plan.at_once);
      if (left.size() > 0) return want(print_channel_sums(compute_type(launch.type)));
    }
}

template <class AnyLaunch> void note_any(const AnyLaunch& launch) {
  if (launch.neurons == 0) return;
  jit::note([&](const jit::Device& device, const jit::Want& want) {
    if (const auto scan = plan_scan(launch, device.multiprocessors)) want(print_scan(launch, *scan));
    const Plan chosen = plan(launch, device.multiprocessors);
    want(print_source(chosen.spec));
    note_more(launch, chosen, want);
  });
}

}  // namespace

void launch_multistep(const ForwardLaunch& launch, const jit::Device& device, void* stream, const Allocate& allocate) {
  launch_any(launch, device, stream, allocate);
}
void launch_multistep(const BackwardLaunch& launch, const jit::Device& device, void* stream, const Allocate& allocate) {
  launch_any(launch, device, stream, allocate);
}

void note(const ForwardLaunch& launch) { note_any(launch); }
void note(const BackwardLaunch& launch) { note_any(launch); }

// ---- the backward kernel that a forward pass foretells ----

namespace {

class Foretold {
 public:
  explicit Foretold(const ForwardLaunch& launch) : grad_states_(launch.cell->states.size()) {
    const Cell& cell = *launch.cell;
    std::size_t argument = 0;
    // Returns a pointer for each gradient; null if it is not wanted, or if the operand is not a tensor.
    const auto wanted = [&](std::size_t count, auto&& is_there) {
      std::vector<void*> grads(count);
      for (std::size_t i = 0; i < count; ++i)
        if (launch.to_come.is_wanted(launch.to_come.call, argument++) && is_there(i)) grads[i] = somewhere();
      return grads;
    };
    grad_inputs_ = wanted(cell.inputs.size(), [](std::size_t) { return true; });
    grad_initial_ = wanted(cell.states.size(), [&](std::size_t s) { return launch.initial[s].data != nullptr; });
    grad_params_ = wanted(cell.params.size(), [&](std::size_t j) { return launch.params[j].data != nullptr; });
    grad_outputs_.assign(cell.outputs.size(), {.data = somewhere(), .time_stride = launch.neurons});

    static_cast<Launch&>(backward) = launch;
    backward.grad_outputs = grad_outputs_;
    backward.grad_states = grad_states_;
    backward.checkpoints = launch.checkpoints;
    for (const void* const grad : grad_inputs_) backward.any_grad_input |= grad != nullptr;
    for (const void* const grad : grad_params_) backward.any_grad_param |= grad != nullptr;
    backward.grad_inputs = grad_inputs_;
    backward.grad_initial = grad_initial_;
    backward.grad_params = grad_params_;
  }
  Foretold(const Foretold&) = delete;
  Foretold& operator=(const Foretold&) = delete;

  BackwardLaunch backward;

 private:
  std::vector<SequenceView> grad_outputs_, grad_states_;
  std::vector<void*> grad_inputs_, grad_initial_, grad_params_;
};

}  // namespace

KernelSpec foretold_backward(const ForwardLaunch& launch, int multiprocessors) {
  return plan(Foretold(launch).backward, multiprocessors).spec;
}

void prepare_next(const ForwardLaunch& launch, const jit::Device& device) {
  if (launch.to_come.is_wanted == nullptr) return;
  const Foretold foretold(launch);
  const auto scan = plan_scan(foretold.backward, device.multiprocessors);
  jit::compile_ahead(
      jit::KernelCache::get(),
      scan ? print_scan(foretold.backward, *scan) : print_source(plan(foretold.backward, device.multiprocessors).spec),
      jit::name_of_arch(device));
}

}  // namespace spikeforge::kernels
