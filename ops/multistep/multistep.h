// One call of a multistep operator of any family, and its device-independent processing: checks in the order of the
// arguments, allocation, and the plain description for kernels.
#pragma once

#include "csrc/kernels/multistep/launch.h"
#include "ops/common/layout.h"
#include "ops/common/spike_bits.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace spikeforge::ops {

// Lists are stored in place for usual neurons, so that a call allocates only its results.
using Tensors = c10::SmallVector<at::Tensor, 4>;

// A tensor that may be undefined, as operators take it.
inline std::optional<at::Tensor> maybe(const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

// Lists have one entry for each input, state and parameter of the cell.
struct MultistepCall {
  const Cell* cell = nullptr;
  // Owns a cell that was parsed from text, because the cache of cells may evict it; empty for a cell with static
  // lifetime. Objects that outlive a call, such as autograd's nodes, hold a copy of the pointer, or the text.
  std::shared_ptr<const Cell> holder;
  at::TensorList inputs;
  at::TensorList states;          // undefined: the cell's initial state; empty list: all undefined
  at::TensorList params;          // undefined: the scalar in `numbers`; empty list: all undefined
  c10::ArrayRef<double> numbers;  // may be empty if all parameters are tensors
  CellForm form;
  SurrogateArgs surrogate_args{};
  bool store_states = false;
  bool last_states = true;  // false: without stored sequences, the results have no states
  // The bits per element of the first output, which are stored for the backward passes of products that read it; 0:
  // none.
  std::int64_t bits = 0;
  // Undefined: none. `lengths` is int32 with the number of dimensions of a step, and broadcasts against it; `start` is
  // bool with the number of steps of x, and broadcasts against x (samples.h).
  at::Tensor lengths, start;
  // For a cell that draws random numbers: int64 tensors of one element (draws.h). Without an offset the first step is
  // 0.
  at::Tensor seed, offset;
  bool scan = false;         // forward only; for a cell with a composition (csrc/kernels/scan)
  const char* op = nullptr;  // prefix of error messages, if it is not the name of the cell's operator

  const char* op_name() const { return op != nullptr ? op : cell->forward_op.c_str(); }
  bool has_samples() const { return lengths.defined() || start.defined(); }
  const at::Tensor& state(std::size_t s) const { return states.empty() ? undefined : states[s]; }
  const at::Tensor& param(std::size_t j) const { return params.empty() ? undefined : params[j]; }

 private:
  inline static const at::Tensor undefined;
};

struct MultistepResults {
  Tensors outputs, states;
  at::Tensor checkpoints;  // undefined if none are stored
  Packed packed;           // the first output; undefined if not requested, or if the caller has to pack it
};

struct BackwardCall : MultistepCall {
  at::TensorList grad_outputs, grad_states;  // undefined: no gradient
  at::Tensor checkpoints;
  c10::SmallVector<bool, 16> needs_grad;  // for inputs, states, parameters
};

// Calls body for every argument of a call, in order; arguments that were not passed are undefined tensors.
template <class Body> void for_each_argument(const MultistepCall& call, Body&& body) {
  for (const at::Tensor& input : call.inputs) body(input);
  for (std::size_t s = 0; s < call.cell->states.size(); ++s) body(call.state(s));
  for (std::size_t j = 0; j < call.cell->params.size(); ++j) body(call.param(j));
}

// Calls body for the tensors of the call only; most lists are empty.
template <class Body> void for_each_tensor(const MultistepCall& call, Body&& body) {
  for (const at::TensorList list : {call.inputs, call.states, call.params})
    for (const at::Tensor& t : list)
      if (t.defined()) body(t);
}

// Checks types, shapes, devices and scalars. Throws TypeError and ValueError.
void check_arguments(const MultistepCall& call);
// Throws the ValueError for the first illegal value of a tensor, for a call that has one.
[[noreturn]] void refuse_values(const MultistepCall& call);
// Throws ValueError for the first length that is not in [0, T]. Only for lengths on the CPU, whose values are read.
void check_lengths(const MultistepCall& call);
// The same for lengths other than the call's, int64 or int32.
void check_lengths(const MultistepCall& call, const at::Tensor& lengths, std::int64_t steps);
// Throws for layouts that are not dense; the dispatcher would only report a missing kernel.
void check_dense(const MultistepCall& call);

// The checked arguments of a call; kernels have no checks. The first input has dense steps, and determines the layout.
// Int is c10::SymInt when a graph is traced.
template <class Int> struct Preparation {
  at::Tensor first_input;
  Layout<Int> layout;
  c10::TensorOptions options;        // of inputs and outputs
  c10::TensorOptions state_options;  // of states and checkpoints
  std::int64_t checkpoint_length = 1;
};
using Prepared = Preparation<std::int64_t>;

template <class Int = std::int64_t> Preparation<Int> prepare(const MultistepCall& call);

template <class Int>
MultistepResults allocate_forward(const MultistepCall& call, const Preparation<Int>& prepared, bool save);

template <class Int> void check_backward(const BackwardCall& call, const Preparation<Int>& prepared);

// One tensor for each argument; undefined if no gradient is needed. The gradient of a parameter is [*shape], one value
// per neuron in the compute type, until reduce_and_list sums it to the shape of the parameter.
struct Gradients {
  Tensors inputs, states, params;
};

// For inputs and states only.
template <class Int> Gradients allocate_backward(const BackwardCall& call, const Preparation<Int>& prepared);
// For the parameters too, one value a neuron, after check_backward.
template <class Int> Gradients check_and_allocate(const BackwardCall& call, const Preparation<Int>& prepared);

bool wants_grad_param(const BackwardCall& call, std::size_t j);

// Sums each parameter's gradient over the neurons that share a value, and lists the needed gradients in the order of
// the arguments. Deterministic: the kernels' partial sums over time belong to one neuron, and torch's sum has a fixed
// order.
Tensors reduce_and_list(const BackwardCall& call, const Gradients& gradients);

// A launch and the data that it points to. It refers to the memory of arguments and results.
class LaunchStorage {
 public:
  LaunchStorage(const MultistepCall& call, const Prepared& prepared);
  LaunchStorage(const LaunchStorage&) = delete;
  LaunchStorage& operator=(const LaunchStorage&) = delete;

 protected:
  using Pointers = c10::SmallVector<void*, 4>;

  void describe(Launch& launch) const;
  SequenceView view_maybe(const at::Tensor& t, bool is_sequence);
  static Pointers writable(const Tensors& tensors);

  const MultistepCall& call_;
  const Prepared& prepared_;
  Copies copies_;  // copies of arguments that cannot be read in place
  c10::SmallVector<SequenceView, 2> inputs_;
  c10::SmallVector<StateView, 2> initial_;
  c10::SmallVector<ParamView, 10> params_;
  LengthsView lengths_;
  StartView start_;
  DrawsView draws_;
};

class DescribedForward : LaunchStorage {
 public:
  DescribedForward(const MultistepCall& call, const Prepared& prepared, const MultistepResults& results);
  ForwardLaunch launch;

  // Called after the run: packs an output whose rows are not whole bytes, because the loops do not.
  void pack_rest(MultistepResults& results) const;

 private:
  Pointers outputs_, states_;
};

class DescribedBackward : LaunchStorage {
 public:
  DescribedBackward(const BackwardCall& call, const Prepared& prepared, const Gradients& gradients);
  BackwardLaunch launch;

  // Called when the gradients of parameters are allocated.
  void set_grad_params(const Tensors& grad_params);

 private:
  c10::SmallVector<SequenceView, 2> grad_outputs_, grad_states_;
  Pointers grad_inputs_, grad_initial_;
  c10::SmallVector<void*, 10> grad_params_;
};

// The kernels of the lowered operators, on each device.
MultistepResults forward_cpu(const MultistepCall& call, bool save);
MultistepResults forward_cuda(const MultistepCall& call, bool save);
MultistepResults forward_meta(const MultistepCall& call, bool save);
Tensors backward_cpu(const BackwardCall& call);
Tensors backward_cuda(const BackwardCall& call);
Tensors backward_meta(const BackwardCall& call);

}  // namespace spikeforge::ops
