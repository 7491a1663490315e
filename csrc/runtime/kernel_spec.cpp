#include <spikeforge/runtime/hash.h>
#include <spikeforge/runtime/kernel_spec.h>

#include <fmt/format.h>

#include <string>

namespace spikeforge::runtime {
namespace {

struct Names {
  const char* name;
  const char* type;
  const char* header;
};

Names names(NeuronKind kind) {
  switch (kind) {
#define SPIKEFORGE_NEURON(name, Struct, header) \
  case NeuronKind::name:                        \
    return {#name, #Struct, header};
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
  }
  return {};
}

const char* surrogate_type(const KernelSpec& spec) {
  return spec.with_surrogate ? struct_of(spec.surrogate) : "NoSurrogate";
}

std::string print_options(const NeuronOptions& options) {
  return fmt::format("StaticOptions<{}, {}, {}, {}>", options.hard_reset, options.detach_reset, options.spiking,
                     options.decay_input);
}

MultistepLaunch canonical(const MultistepLaunch& launch) {
  MultistepLaunch result = launch;
  const bool reads_decay_input = launch.neuron == NeuronKind::lif || launch.neuron == NeuronKind::plif;
  if (!reads_decay_input) result.options.decay_input = true;
  return result;
}

KernelSpec common_spec(Direction direction, const MultistepLaunch& given, const Schedule& schedule) {
  const MultistepLaunch launch = canonical(given);
  KernelSpec spec;
  spec.direction = direction;
  spec.neuron = launch.neuron;
  spec.surrogate = launch.surrogate;
  spec.options = launch.options;
  spec.type = launch.type;
  spec.schedule = schedule;
  spec.store_states = launch.store_states;
  for (int s = 0; s < launch.n_states; ++s)
    if (launch.initial[s].data != nullptr) spec.initial[s] = operand(launch.initial[s].type);
  for (int j = 0; j < launch.n_params; ++j)
    if (launch.params[j].data != nullptr) {
      spec.params[j] = operand(launch.params[j].type);
      spec.shared_params[j] = shared_by_warps(launch.params[j], schedule);
    }
  return spec;
}

}  // namespace

KernelSpec forward_spec(const ForwardLaunch& launch, const Schedule& schedule) {
  KernelSpec spec = common_spec(Direction::forward, launch, schedule);
  spec.save = launch.checkpoints != nullptr;
  if (!spec.save) spec.schedule.checkpoint = 1;
  spec.options.detach_reset = false;
  if (spec.options.spiking) {
    spec.with_surrogate = false;
    spec.surrogate = {};
  }
  return spec;
}

KernelSpec backward_spec(const BackwardLaunch& launch, const Schedule& schedule) {
  KernelSpec spec = common_spec(Direction::backward, launch, schedule);
  spec.grad_spikes = kind_of(launch.grad_spikes);
  spec.wants_grad_x = launch.grad_x != nullptr;
  for (int s = 0; s < launch.n_states; ++s) {
    spec.grad_states[s] = kind_of(launch.grad_states[s]);
    spec.wants_grad_initial[s] = launch.grad_initial[s] != nullptr;
  }
  for (int j = 0; j < launch.n_params; ++j) spec.wants_grad_params[j] = launch.grad_params[j] != nullptr;
  return spec;
}

KernelSource print_source(const KernelSpec& spec) {
  const Names neuron = names(spec.neuron);
  const LoopSpec loop{.direction = spec.direction,
                      .type = spec.type,
                      .schedule = spec.schedule,
                      .save = spec.save,
                      .store_states = spec.store_states};
  const CellText cell{.name = neuron.name,
                      .text = fmt::format("#include <spikeforge/neuron/{}>\n", neuron.header),
                      .types = {fmt::format("Options = {}", print_options(spec.options)),
                                fmt::format("Neuron = {}<Compute, Options>", neuron.type),
                                fmt::format("Surrogate = {}<Compute>", surrogate_type(spec)),
                                "Cell = SpikingCell<Compute, Neuron, Surrogate, Options>"}};
  const std::array<Place, 1> inputs{{{.wanted = spec.wants_grad_x}}};
  const std::array<Place, 1> outputs{{{.grad = spec.grad_spikes}}};
  std::array<Place, max_states> states;
  for (std::size_t s = 0; s < states.size(); ++s)
    states[s] = {.operand = spec.initial[s], .grad = spec.grad_states[s], .wanted = spec.wants_grad_initial[s]};
  std::array<Place, max_params> params;
  for (std::size_t j = 0; j < params.size(); ++j)
    params[j] = {.operand = spec.params[j], .shared = spec.shared_params[j], .wanted = spec.wants_grad_params[j]};
  return print_kernel(loop, cell, {inputs, states, params, outputs});
}

}  // namespace spikeforge::runtime
