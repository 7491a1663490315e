// The derivatives of a multistep call consist of the jvp of its cell (csrc/autodiff/jvp.h), a cell that computes
// tangents in addition to values and runs like any text.
//
//   y  = F(a)            dy = J(a) da              one run of the jvp                      forward mode
//   ga = J(a)^T gy                                 the cell's own vjp                      reverse mode
//   <u, ga> = <gy, J(a) u>: the gradient of the backward pass w.r.t. gy is J(a) u, one run of the jvp; that w.r.t. a is
//   that of <gy, dy> in the jvp's own backward pass                                        reverse over reverse
//   d ga = J(a)^T dgy + gradient of <gy, J(a) da> w.r.t. a: the jvp's backward pass too     forward over reverse
//
// A predefined neuron is converted to equations first (csrc/kernels/multistep/written_step.h): second derivatives agree
// with those of its own backward pass within rounding.
#pragma once

#include "ops/multistep/multistep.h"

namespace spikeforge::ops {

// One entry for each argument of a call, in its order; undefined if absent.
using ByArgument = c10::SmallVector<at::Tensor, 16>;

ByArgument tensors_of(const MultistepCall& call);
// Sets the tensors of a call, which then refers to the elements of `by_argument`.
void set_tensors(MultistepCall& call, at::TensorList by_argument);
// Returns the gradients of a call by argument, from the list that its operator returns.
ByArgument gradients_by_argument(const BackwardCall& call, Tensors listed);

// Values and tangents of outputs and states. Throws NotImplementedError if the jvp of the cell is too large.
struct Tangents {
  MultistepResults values;
  Tensors outputs, states;
};
Tangents run_with_tangents(const MultistepCall& call, const ByArgument& tangents);

// Returns the gradients of <grads, F> + <grads_of_tangents, tangents of F> with respect to the `wanted` arguments.
ByArgument gradients_with_tangents(const MultistepCall& call, const ByArgument& tangents, at::TensorList grads,
                                   at::TensorList grads_of_tangents, c10::ArrayRef<bool> wanted);

}  // namespace spikeforge::ops
