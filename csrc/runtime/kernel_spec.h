// A kernel spec: everything that decides generated code, and the CUDA source it prints. Numbers (tau, N, T, strides, a
// surrogate's arguments) are arguments of the kernel and never in a spec.
#pragma once

#include <spikeforge/runtime/loop_spec.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace spikeforge::runtime {

struct KernelSpec {
  Direction direction{};
  NeuronKind neuron{};
  SurrogateKind surrogate{};
  bool with_surrogate = true;
  NeuronOptions options;
  DType type{};
  Schedule schedule;
  bool save = false;
  bool store_states = false;
  std::array<Operand, max_states> initial{};
  std::array<Operand, max_params> params{};
  std::array<bool, max_params> shared_params{};  // by all neurons of a warp

  // backward alone
  GradKind grad_spikes{};
  std::array<GradKind, max_states> grad_states{};
  bool wants_grad_x = false;
  std::array<bool, max_states> wants_grad_initial{};
  std::array<bool, max_params> wants_grad_params{};

  bool operator==(const KernelSpec&) const = default;
};

// Choices that do not change a kernel's results are brought to one value, so that they do not multiply kernels: a
// spiking forward pass has no surrogate and no detach_reset.
KernelSpec forward_spec(const ForwardLaunch& launch, const Schedule& schedule);
KernelSpec backward_spec(const BackwardLaunch& launch, const Schedule& schedule);

KernelSource print_source(const KernelSpec& spec);

}  // namespace spikeforge::runtime
