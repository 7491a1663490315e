// Custom neurons: equations as a C++ lambda or as text, run over a sequence of steps as one differentiable operator.
//
//   auto alif = spikeforge::trace("alif", {"x"}, {"v", "a"}, {"tau"}, [](Value x, Value v, Value a, Value tau) {
//     Value decay = 1 / tau;
//     Value h = v + (x - v) * decay;
//     Value s = spike(h - (1 + a), surrogate::atan(2));
//     return step({s}, {select(s, 0, h), 0.9 * a + s});  // outputs, next states
//   });
//   auto [outputs, states] = alif({x}, {v, a}, {tau});
//
// graph/trace.h and graph/value.h describe lambdas, docs/neuron_text.md describes texts.
#pragma once

#include "csrc/base/export.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/trace.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace spikeforge {

using graph::bernoulli;
using graph::GraphError;
using graph::normal;
using graph::poisson;
using graph::State;
using graph::Step;
using graph::step;
using graph::uniform;
using graph::Value;
using graph::Values;
namespace surrogate = graph::surrogate;

// A neuron, with value semantics: cheap to move, and safe to call from several threads.
class SPIKEFORGE_API Neuron {
 public:
  // Throws c10::ValueError for a text that is not legal, with line, column and a caret below the position, and
  // c10::Error if existing Neurons have reached the memory limit (SPIKEFORGE_NEURONS_LIMIT_MB).
  explicit Neuron(std::string text);
  explicit Neuron(const graph::Cell& cell);

  // `inputs` has one [T, *shape] for each input, time first, all of the same shape, type (float16, bfloat16, float32,
  // float64) and device. `states` has one [*shape] for each state, or is empty: states then start at the initial values
  // in the text. `params` has one tensor for each parameter, which broadcasts against shape, and may be 0-dimensional
  // on the CPU. States and parameters have the inputs' type, or float32 for inputs of half types.
  //
  // Returns the outputs, [T, *shape] in the inputs' type and layout, and the last states, [*shape], in float32 for half
  // types; with `store_states`, the sequences of states [T, *shape]. `scan` allows steps in parallel, as a scan over
  // time, which rounds differently; it throws c10::ValueError unless there are 1 to 4 states, and the next states are
  // affine in them. `lengths` has the number of steps of each sample, an index of dimension 1; `start` is true where it
  // restarts (neuron.h). With either, the loop runs instead of a scan. `seed` and `offset`, int64 with one element, on
  // the CPU or the inputs' device, are for neurons that draw random numbers: equal values give equal random numbers. To
  // continue a sequence, pass its last states, and the number of steps so far as `offset`. Without a seed, torch's
  // generator draws one. Everything is differentiable once. Errors are c10::TypeError and c10::ValueError and name the
  // neuron and the argument.
  std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> operator()(
      at::TensorList inputs, at::TensorList states = {}, at::TensorList params = {}, bool store_states = false,
      bool scan = false, const std::optional<at::Tensor>& lengths = {}, const std::optional<at::Tensor>& start = {},
      const std::optional<at::Tensor>& seed = {}, const std::optional<at::Tensor>& offset = {}) const;

  // For a neuron without states and a single step, [1, *shape]: returns the gradients of the inputs for which `wanted`
  // is true, in order, from the gradients of all outputs. Operators built from a neuron (custom_op/elementwise.h) use
  // it.
  std::vector<at::Tensor> input_gradients(at::TensorList inputs, at::TensorList params, at::TensorList grad_outputs,
                                          const std::vector<bool>& wanted) const;

  // Returns the CUDA source of the forward and the backward kernel in training, for inputs of this type and a tensor
  // for each state and parameter, for inspection or profiling. Needs no GPU. Throws c10::TypeError for a type that
  // inputs cannot have.
  std::string print_cuda(c10::ScalarType dtype = c10::ScalarType::Float) const;

  // The text, as an argument of torch.ops.spikeforge.run.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::shared_ptr<const void> cell_;  // created once, and owned by the Neuron
};

// Calls graph::trace. Throws GraphError.
template <class Lambda>
Neuron trace(std::string name, std::vector<std::string> inputs, std::vector<State> states,
             std::vector<std::string> params, Lambda lambda) {
  return Neuron(graph::trace(std::move(name), std::move(inputs), std::move(states), std::move(params), lambda));
}

// The same with arguments that are named x0, x1, ..., v0, ..., p0, ...
template <class Lambda>
Neuron trace(std::string name, std::size_t inputs, std::size_t states, std::size_t params, Lambda lambda) {
  return Neuron(graph::trace(std::move(name), inputs, states, params, lambda));
}

}  // namespace spikeforge
