// A kernel's arguments: the 8-byte words of cuda/multistep.cuh's ForwardArgs or BackwardArgs, in their order.
#pragma once

#include <spikeforge/runtime/launch.h>
#include <spikeforge/runtime/loihi_launch.h>
#include <spikeforge/runtime/traced_launch.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace spikeforge::runtime {

class Arguments {
 public:
  explicit Arguments(const ForwardLaunch& launch) {
    add_common(launch);
    add(launch.spikes);
    add_list(launch.states, launch.n_states);
    add(launch.checkpoints);
  }

  explicit Arguments(const BackwardLaunch& launch) {
    add_common(launch);
    add(launch.grad_spikes);
    add_list(launch.grad_states, launch.n_states);
    add(launch.checkpoints);
    add(launch.grad_x);
    add_list(launch.grad_initial, launch.n_states);
    add_list(launch.grad_params, launch.n_params);
  }

  explicit Arguments(const TracedForwardLaunch& launch) {
    add_common(launch);
    add_list(launch.outputs);
    add_list(launch.states);
    add(launch.checkpoints);
  }

  explicit Arguments(const TracedBackwardLaunch& launch) {
    add_common(launch);
    add_list(launch.grad_outputs);
    add_list(launch.grad_states);
    add(launch.checkpoints);
    add_list(launch.grad_inputs);
    add_list(launch.grad_initial);
    add_list(launch.grad_params);
  }

  explicit Arguments(const LoihiLaunch& launch) {
    add(launch.steps);
    add(launch.neurons);
    for (int i = 0; i < max_surrogate_args; ++i) add(0.0);
    add(launch.x);
    add_list(launch.initial, launch.n_states());
    add_list(launch.params, launch.n_params());
    add(launch.spikes);
    add_list(launch.states, launch.n_states());
    add(nullptr);  // checkpoints
  }

  const void* data() const { return words_.data(); }
  std::size_t bytes() const { return size_ * sizeof(std::uint64_t); }

 private:
  void add_common(const MultistepLaunch& launch) {
    add(launch.steps);
    add(launch.neurons);
    for (const double arg : launch.surrogate_args) add(arg);
    add(launch.x);
    add_list(launch.initial, launch.n_states);
    add_list(launch.params, launch.n_params);
  }

  // A traced cell's surrogates have their numbers in its text.
  void add_common(const TracedLaunch& launch) {
    add(launch.steps);
    add(launch.neurons);
    for (int i = 0; i < max_surrogate_args; ++i) add(0.0);
    add_list(launch.inputs);
    add_list(launch.initial);
    add_list(launch.params);
  }

  template <class T>
  void add_list(std::span<const T> list) {
    for (const T& item : list) add(item);
    if (list.empty()) add(T{});  // room() in cuda/multistep.cuh
  }
  template <class T, std::size_t n>
  void add_list(const std::array<T, n>& list, int count) {
    add_list(std::span<const T>(list).first(static_cast<std::size_t>(count)));
  }

  void add(const void* pointer) { add_word(reinterpret_cast<std::uintptr_t>(pointer)); }
  void add(std::int64_t number) { add_word(static_cast<std::uint64_t>(number)); }
  void add(double number) { add_word(std::bit_cast<std::uint64_t>(number)); }
  void add(const SequenceView& view) {
    add(view.data);
    add(view.time_stride);
  }
  void add(const StateView& state) { add(state.data); }
  void add(const ParamView& param) {
    add(param.data);
    add(param.number);
    add(param.inner);
    add(param.count);
  }
  void add_word(std::uint64_t word) { words_[size_++] = word; }

  // Of a traced cell, whose arguments together are at most graph::most_arguments; CUDA takes 32764 bytes.
  static constexpr std::size_t most_words =
      3 + max_surrogate_args + 6 * graph::most_arguments + 2 * graph::most_outputs;
  std::array<std::uint64_t, most_words> words_;
  std::size_t size_ = 0;
};

}  // namespace spikeforge::runtime
