// The arguments of a kernel: the 8-byte words of ForwardArgs or BackwardArgs of cuda/multistep/multistep.cuh, in order.
#pragma once

#include "csrc/base/bounded_list.h"
#include "csrc/graph/cell.h"
#include "csrc/kernels/multistep/launch.h"

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace spikeforge::kernels {

class ArgumentWords {
 public:
  // Appends further arguments of a kernel.
  void append(const ArgumentWords& other) {
    for (const std::uint64_t word : other.words_.items()) words_.push_back(word);
  }
  template <class T>
  requires(!std::derived_from<T, ArgumentWords>) void append(const T& whole) {
    static_assert(sizeof(T) % sizeof(std::uint64_t) == 0 && std::is_trivially_copyable_v<T>);
    for (const std::uint64_t word : std::bit_cast<std::array<std::uint64_t, sizeof(T) / sizeof(std::uint64_t)>>(whole))
      words_.push_back(word);
  }

  const void* data() const { return words_.data(); }
  std::size_t bytes() const { return words_.size() * sizeof(std::uint64_t); }

 protected:
  // Adds the arguments of the cell, including those of the sequences that its steps read.
  void add_cell(const Launch& launch) {
    for (const double arg : launch.surrogate_args) add(arg);
    add_list(launch.inputs);
    add_list(launch.initial);
    add_list(launch.params);
  }

  // Adds the results of the steps, which a backward pass also reads.
  void add_results(const ForwardLaunch& launch) {
    add_list(launch.outputs);
    add_list(launch.states);
    add(launch.checkpoints);
  }
  void add_gradients(const BackwardLaunch& launch) {
    add_list(launch.grad_outputs);
    add_list(launch.grad_states);
    add(launch.checkpoints);
    add_list(launch.grad_inputs);
    add_list(launch.grad_initial);
    add_list(launch.grad_params);
  }

  // Adds SampleArgs.
  void add_samples(const Launch& launch) {
    if (!launch.has_samples()) return;
    add(launch.lengths.data);
    add(launch.lengths.inner);
    add(launch.lengths.count);
    add(launch.start.data);
    add(launch.start.inner);
    add(launch.start.count);
    add(launch.start.time_stride);
  }

  // Adds DrawArgs.
  void add_draws(const Launch& launch) {
    if (!launch.cell->draws) return;
    add(launch.draws.seed);
    add(launch.draws.seed_number);
    add(launch.draws.offset);
    add(launch.draws.offset_number);
    add(launch.draws.fast);
    add(launch.draws.slow);
    add(launch.draws.first);
  }

  template <class T> void add_list(std::span<const T> list) {
    for (const T& item : list) add(item);
    if (list.empty()) add(T{});  // room() in cuda/multistep/neurons.cuh
  }

  void add(const void* pointer) { words_.push_back(reinterpret_cast<std::uintptr_t>(pointer)); }
  void add(std::int64_t number) { words_.push_back(static_cast<std::uint64_t>(number)); }
  void add(double number) { words_.push_back(std::bit_cast<std::uint64_t>(number)); }
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

 private:
  // A cell has at most graph::most_arguments arguments. CUDA accepts 32764 bytes: enough for two loops, and for the
  // same size of other arguments.
  static constexpr std::size_t most_words =
      2 * (8 + max_surrogate_args + 6 * graph::most_arguments + 2 * graph::most_outputs) + 64;
  BoundedList<std::uint64_t, most_words> words_;
};

class Arguments : public ArgumentWords {
 public:
  Arguments(const ForwardLaunch& launch, std::int64_t at_once) {
    add_common(launch, at_once);
    add_results(launch);
    add(launch.packed.numbers);
    add(launch.packed.valid);
    add_samples(launch);
    add_draws(launch);
  }

  Arguments(const BackwardLaunch& launch, std::int64_t at_once) {
    add_common(launch, at_once);
    add_gradients(launch);
    add_samples(launch);
    add_draws(launch);
  }

 private:
  void add_common(const Launch& launch, std::int64_t at_once) {
    add(launch.steps);
    add(launch.neurons);
    add(at_once);
    add_cell(launch);
  }
};

}  // namespace spikeforge::kernels
