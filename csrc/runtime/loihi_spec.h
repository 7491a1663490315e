// Everything that decides the kernel of a Loihi neuron (as kernel_spec.h), and its source.
#pragma once

#include <spikeforge/runtime/loihi_launch.h>
#include <spikeforge/runtime/loop_spec.h>

#include <array>

namespace spikeforge::runtime {

struct LoihiSpec {
  LoopSpec loop;
  bool ternary = false;
  LoihiForm form{};
  std::array<Place, max_loihi_states> states{};
  std::array<Place, max_loihi_params> params{};

  bool operator==(const LoihiSpec&) const = default;
};

LoihiSpec loihi_spec(const LoihiLaunch& launch, const Schedule& schedule);

KernelSource print_source(const LoihiSpec& spec);

}  // namespace spikeforge::runtime
