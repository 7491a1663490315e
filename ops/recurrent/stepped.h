// A recurrent layer by operators that run one step at a time, for any kind of connections.
#pragma once

#include "ops/recurrent/call.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace spikeforge::ops::recurrent {

// The connections of a layer in the forward pass. Tensors of a step are [1, *batch, H].
class Feedback {
 public:
  Feedback() = default;
  Feedback(const Feedback&) = delete;
  Feedback& operator=(const Feedback&) = delete;
  virtual ~Feedback() = default;

  // Returns the current of step t, of the inputs' type.
  virtual at::Tensor current(std::int64_t t) = 0;
  // Sends the first output of step t.
  virtual void send(std::int64_t t, const at::Tensor& output) = 0;
};

// The connections in the backward pass, which processes the steps from the last to the first.
class BackwardFeedback {
 public:
  BackwardFeedback() = default;
  BackwardFeedback(const BackwardFeedback&) = delete;
  BackwardFeedback& operator=(const BackwardFeedback&) = delete;
  virtual ~BackwardFeedback() = default;

  // Returns the gradient of the first output of step t. `upstream` may be undefined, and so may the result.
  virtual at::Tensor of_output(std::int64_t t, const at::Tensor& upstream) = 0;
  // Receives the gradient of the current of step t.
  virtual void receive(std::int64_t t, const at::Tensor& of_current) = 0;
};

// Run the neuron of a call with the current as input number `into`.
RecurrentResults forward_by_steps(const MultistepCall& call, std::int64_t into, Feedback& feedback, bool save);
Tensors backward_by_steps(const BackwardCall& call, std::int64_t into, BackwardFeedback& feedback);

}  // namespace spikeforge::ops::recurrent
