#include "csrc/base/somewhere.h"
#include "csrc/jit/compile_ahead.h"
#include "csrc/kernels/multistep/plan.h"
#include "csrc/kernels/scan/scan.h"

#include <vector>

namespace spikeforge::kernels {
namespace {

class Foretold {
 public:
  explicit Foretold(const ForwardLaunch& launch) : grad_states_(launch.cell->states.size()) {
    const Cell& cell = *launch.cell;
    std::size_t argument = 0;
    // Applies to those that are present; null: the gradient is not wanted.
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
