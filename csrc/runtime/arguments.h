// A kernel's arguments: the 8-byte words of cuda/multistep.cuh's ForwardArgs or BackwardArgs, in their order.
#pragma once

#include <spikeforge/runtime/launch.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace spikeforge::runtime {

class Arguments {
 public:
  explicit Arguments(const ForwardLaunch& launch) {
    add_common(launch);
    add(launch.spikes);
    for (int s = 0; s < launch.n_states; ++s) add(launch.states[s]);
    add(launch.checkpoints);
  }

  explicit Arguments(const BackwardLaunch& launch) {
    add_common(launch);
    add(launch.grad_spikes);
    for (int s = 0; s < launch.n_states; ++s) add(launch.grad_states[s]);
    add(launch.checkpoints);
    add(launch.grad_x);
    for (int s = 0; s < launch.n_states; ++s) add(launch.grad_initial[s]);
    for (int j = 0; j < launch.n_params; ++j) add(launch.grad_params[j]);
  }

  const void* data() const { return words_.data(); }
  std::size_t bytes() const { return size_ * sizeof(std::uint64_t); }

 private:
  void add_common(const MultistepLaunch& launch) {
    add(launch.steps);
    add(launch.neurons);
    for (const double arg : launch.surrogate_args) add(arg);
    add(launch.x);
    for (int s = 0; s < launch.n_states; ++s) add(launch.initial[s].data);
    for (int j = 0; j < launch.n_params; ++j) add(launch.params[j]);
  }

  void add(const void* pointer) { add_word(reinterpret_cast<std::uintptr_t>(pointer)); }
  void add(std::int64_t number) { add_word(static_cast<std::uint64_t>(number)); }
  void add(double number) { add_word(std::bit_cast<std::uint64_t>(number)); }
  void add(const SequenceView& view) {
    add(view.data);
    add(view.time_stride);
  }
  void add(const ParamView& param) {
    add(param.data);
    add(param.number);
    add(param.inner);
    add(param.count);
  }
  void add_word(std::uint64_t word) { words_[size_++] = word; }

  static constexpr std::size_t most_words =
      2 + max_surrogate_args + 2 + max_states + 4 * max_params + 2 + 2 * max_states + 1 + 1 + max_states + max_params;
  std::array<std::uint64_t, most_words> words_;
  std::size_t size_ = 0;
};

}  // namespace spikeforge::runtime
