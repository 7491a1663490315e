// What every device does alike for a traced neuron: checks, in the order of the arguments; allocation; the plain
// description that kernels take. As ops/neuron/prepare.h, for lists.
#pragma once

#include <spikeforge/ops/neuron/layout.h>
#include <spikeforge/ops/traced/arguments.h>
#include <spikeforge/runtime/traced_launch.h>

#include <cstdint>
#include <vector>

namespace spikeforge::ops {

// The arguments checked, the first input with dense steps: it gives the layout. Int is c10::SymInt where a graph is
// traced.
template <class Int>
struct TracedPreparation {
  const TracedCell* cell = nullptr;
  at::Tensor first_input;
  Layout<Int> layout;
  c10::TensorOptions options;        // of inputs and outputs
  c10::TensorOptions state_options;  // of states and checkpoints
  std::int64_t checkpoint_length = 1;
};

template <class Int = std::int64_t>
TracedPreparation<Int> prepare(const TracedArguments& args);

template <class Int>
TracedResults allocate_forward(const TracedArguments& args, const TracedPreparation<Int>& prepared, bool save);

template <class Int>
void check_backward(const TracedBackwardArguments& args, const TracedPreparation<Int>& prepared);

// One tensor for each argument; undefined where no gradient is wanted. A parameter's is [*shape], one value a neuron in
// the compute type, until reduce_and_list has summed it.
struct TracedGradients {
  Tensors inputs, states, params;
};
template <class Int>
TracedGradients allocate_backward(const TracedBackwardArguments& args, const TracedPreparation<Int>& prepared);

// Sums each parameter's gradient over the neurons that share it, and lists what was asked for.
Tensors reduce_and_list(const TracedBackwardArguments& args, const TracedGradients& gradients);

// A launch, and what it points to. Reads the memory of arguments and results.
class TracedCall {
 public:
  TracedCall(const TracedArguments& args, const TracedPreparation<std::int64_t>& prepared);
  TracedCall(const TracedCall&) = delete;
  TracedCall& operator=(const TracedCall&) = delete;

 protected:
  void describe(TracedLaunch& launch) const;
  SequenceView view_maybe(const std::optional<at::Tensor>& t, bool is_sequence);
  static std::vector<void*> writable(const Tensors& tensors);

  const TracedPreparation<std::int64_t>& prepared_;
  const bool store_states_;
  Copies copies_;  // what could not be read in place
  std::vector<SequenceView> inputs_;
  std::vector<StateView> initial_;
  std::vector<ParamView> params_;
};

class TracedForwardCall : TracedCall {
 public:
  TracedForwardCall(const TracedArguments& args, const TracedPreparation<std::int64_t>& prepared,
                    const TracedResults& results);
  TracedForwardLaunch launch;

 private:
  std::vector<void*> outputs_, states_;
};

class TracedBackwardCall : TracedCall {
 public:
  TracedBackwardCall(const TracedBackwardArguments& args, const TracedPreparation<std::int64_t>& prepared,
                     const TracedGradients& gradients);
  TracedBackwardLaunch launch;

 private:
  std::vector<SequenceView> grad_outputs_, grad_states_;
  std::vector<void*> grad_inputs_, grad_initial_, grad_params_;
};

}  // namespace spikeforge::ops
