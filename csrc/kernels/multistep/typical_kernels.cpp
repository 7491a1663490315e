#include "csrc/kernels/multistep/typical_kernels.h"
#include "csrc/base/somewhere.h"
#include "csrc/jit/errors.h"
#include "csrc/kernels/multistep/plan.h"
#include "csrc/kernels/multistep/predefined_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace spikeforge::kernels {
namespace {

// A call's launches, and the data to which they point.
class Launches {
 public:
  Launches(const Cell& cell, const TypicalCall& call)
      : inputs_(cell.inputs.size(), row(call.neurons)),
        grad_outputs_(cell.outputs.size(), row(call.neurons)),
        grad_states_(cell.states.size()),
        initial_(cell.states.size()),
        params_(cell.params.size()),
        grad_inputs_(cell.inputs.size(), somewhere()),
        outputs_(cell.outputs.size(), somewhere()),
        states_(cell.states.size(), somewhere()),
        grad_initial_(cell.states.size()),
        grad_params_(cell.params.size()) {
    const DType arithmetic = compute_type(call.type);
    if (call.tensors == Tensors::all) {
      std::ranges::fill(grad_states_, row(call.store_states ? call.neurons : 0));
      std::ranges::fill(initial_, StateView{somewhere(), arithmetic});
      std::ranges::fill(params_, ParamView{.data = somewhere(), .type = arithmetic, .count = call.neurons});
      std::ranges::fill(grad_initial_, somewhere());
      std::ranges::fill(grad_params_, somewhere());
    }
    if (call.tensors == Tensors::required && cell.name == "plif") {
      params_[0] = {.data = somewhere(), .type = arithmetic};
      grad_params_[0] = somewhere();
    }
    describe(forward, cell, call);
    forward.outputs = outputs_;
    forward.states = states_;
    describe(backward, cell, call);
    backward.grad_outputs = grad_outputs_;
    backward.grad_states = grad_states_;
    backward.checkpoints = somewhere();
    backward.any_grad_input = true;
    backward.any_grad_param = std::ranges::any_of(grad_params_, [](const void* grad) { return grad != nullptr; });
    backward.grad_inputs = grad_inputs_;
    backward.grad_initial = grad_initial_;
    backward.grad_params = grad_params_;
  }
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  ForwardLaunch forward;
  BackwardLaunch backward;

 private:
  static SequenceView row(std::int64_t time_stride) { return {.data = somewhere(), .time_stride = time_stride}; }

  void describe(Launch& launch, const Cell& cell, const TypicalCall& call) const {
    launch.cell = &cell;
    launch.form = call.form;
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
};

}  // namespace

TypicalKernels typical_kernels(const Cell& cell, const TypicalCall& call) {
  Launches launches(cell, call);
  TypicalKernels kernels;
  kernels.inference = plan(launches.forward, call.multiprocessors).spec;
  launches.forward.checkpoints = somewhere();
  kernels.forward = plan(launches.forward, call.multiprocessors).spec;
  kernels.backward = plan(launches.backward, call.multiprocessors).spec;
  return kernels;
}

std::string print_cuda(const Cell& cell, const TypicalCall& call) {
  const TypicalKernels kernels = typical_kernels(cell, call);
  return print_source(kernels.forward).text + "\n" + print_source(kernels.backward).text;
}

std::string_view name_of(DType type) {
  return std::array{"float16", "bfloat16", "float32", "float64", "int32"}[static_cast<std::size_t>(type)];
}

void add_predefined(jit::Recorder& recorder, const std::vector<std::string>& neurons) {
  const auto is_named = [&](NeuronKind kind, const std::string& name) { return predefined_cell(kind).name == name; };
  for (const std::string& name : neurons)
    if (std::ranges::none_of(all_neurons, [&](NeuronKind kind) { return is_named(kind, name); }))
      throw jit::PackError(fmt::format("there is no predefined neuron \"{}\"", name));
  for (const NeuronKind kind : all_neurons) {
    const Cell& cell = predefined_cell(kind);
    if (!neurons.empty() && std::ranges::find(neurons, cell.name) == neurons.end()) continue;
    for (const DType type : {DType::f32, DType::f16, DType::bf16})
      for (const SurrogateKind surrogate : {SurrogateKind::sigmoid, SurrogateKind::atan})
        for (const std::int64_t steps : {1, 4, 8, 16, 32, 128, 1024})
          for (const std::int64_t count : {1 << 9, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22})
            recorder.add([&](const jit::Device& device, const jit::Want& want) {
              const TypicalKernels kernels = typical_kernels(cell, {.type = type,
                                                                    .steps = steps,
                                                                    .neurons = count,
                                                                    .tensors = Tensors::required,
                                                                    .form = {.surrogate = surrogate},
                                                                    .multiprocessors = device.multiprocessors});
              for (const KernelSpec* spec : {&kernels.inference, &kernels.forward, &kernels.backward})
                want(print_source(*spec));
            });
  }
}

}  // namespace spikeforge::kernels
