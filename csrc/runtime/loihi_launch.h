// One call of a Loihi neuron as plain data; as runtime/launch.h, in int32 throughout and forward only.
#pragma once

#include <spikeforge/lava/loihi.h>
#include <spikeforge/runtime/launch.h>
#include <spikeforge/runtime/multistep_launch.h>

#include <array>
#include <cstdint>

namespace spikeforge {

constexpr int max_loihi_states = 3;
constexpr int max_loihi_params = 8;
static_assert(max_loihi_params == loihi_params(/*ternary=*/true, LoihiForm::reset));

struct LoihiLaunch {
  static constexpr DType type = DType::i32;
  static constexpr std::int64_t checkpoint_length = 1;  // there is no backward pass

  bool ternary = false;
  LoihiForm form{};
  std::int64_t steps = 0;
  std::int64_t neurons = 0;
  bool store_states = false;  // sequences of states, [T, N], rather than the last ones

  SequenceView x;
  std::array<StateView, max_loihi_states> initial;  // null: 0
  std::array<ParamView, max_loihi_params> params;   // in the order of Loihi::Param
  void* spikes = nullptr;
  std::array<void*, max_loihi_states> states{};

  int n_states() const { return loihi_states(form); }
  int n_params() const { return loihi_params(ternary, form); }
};

namespace runtime {

// As for the other neurons (multistep_launch.h).
void launch(const LoihiLaunch& launch, const Device& device, void* stream);

}  // namespace runtime
}  // namespace spikeforge
