#include <spikeforge/runtime/somewhere.h>
#include <spikeforge/runtime/typical_kernels.h>

#include <array>
#include <vector>

namespace spikeforge::runtime {
namespace {

class Launches {
 public:
  Launches(const TracedCell& cell, const TypicalCall& call)
      : inputs_(cell.stages.inputs, row(call.neurons)),
        grad_outputs_(cell.stages.outputs, row(call.neurons)),
        grad_states_(cell.stages.states, call.store_states ? row(call.neurons) : row(0)),
        initial_(cell.stages.states),
        params_(cell.stages.params),
        grad_inputs_(cell.stages.inputs, somewhere()),
        outputs_(cell.stages.outputs, somewhere()),
        states_(cell.stages.states, somewhere()),
        grad_initial_(cell.stages.states, call.with_tensors ? somewhere() : nullptr),
        grad_params_(cell.stages.params, call.with_tensors ? somewhere() : nullptr) {
    if (call.with_tensors) {
      for (StateView& state : initial_) state = {somewhere(), compute_type(call.type)};
      for (ParamView& param : params_)
        param = {.data = somewhere(), .type = compute_type(call.type), .count = call.neurons};
    }
    describe(forward_, cell, call);
    forward_.outputs = outputs_;
    forward_.states = states_;
    forward_.checkpoints = somewhere();
    describe(backward_, cell, call);
    backward_.grad_outputs = grad_outputs_;
    backward_.grad_states = grad_states_;
    backward_.checkpoints = somewhere();
    backward_.grad_inputs = grad_inputs_;
    backward_.grad_initial = grad_initial_;
    backward_.grad_params = grad_params_;
  }

  TracedSpec forward() const { return traced_spec(forward_, forward_schedule(forward_, multiprocessors)); }
  TracedSpec backward() const { return traced_spec(backward_, backward_schedule(backward_, multiprocessors)); }

 private:
  static constexpr int multiprocessors = 132;

  static SequenceView row(std::int64_t time_stride) { return {.data = somewhere(), .time_stride = time_stride}; }

  void describe(TracedLaunch& launch, const TracedCell& cell, const TypicalCall& call) {
    launch.cell = &cell;
    launch.type = call.type;
    launch.steps = call.steps;
    launch.neurons = call.neurons;
    launch.checkpoint_length = cell.checkpoint_length(call.type);
    launch.store_states = call.store_states;
    launch.inputs = inputs_;
    launch.initial = initial_;
    launch.params = params_;
  }

  std::vector<SequenceView> inputs_, grad_outputs_, grad_states_;
  std::vector<StateView> initial_;
  std::vector<ParamView> params_;
  std::vector<void*> grad_inputs_, outputs_, states_, grad_initial_, grad_params_;
  TracedForwardLaunch forward_;
  TracedBackwardLaunch backward_;
};

}  // namespace

TypicalKernels typical_kernels(const TracedCell& cell, const TypicalCall& call) {
  const Launches launches(cell, call);
  return {launches.forward(), launches.backward()};
}

std::string print_cuda(const TracedCell& cell, const TypicalCall& call) {
  const TypicalKernels kernels = typical_kernels(cell, call);
  return print_source(kernels.forward).text + "\n" + print_source(kernels.backward).text;
}

std::string_view name_of(DType type) {
  return std::array{"float16", "bfloat16", "float32", "float64"}[static_cast<std::size_t>(type)];
}

}  // namespace spikeforge::runtime
