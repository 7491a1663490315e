// How a [T, *shape] tensor lies in memory, and how other tensors are brought beside it.
//
// Kernels see a sequence as [T, N]: N neurons in the order of x's memory, whatever that order is in terms of `shape`
// (contiguous, channels-last). Everything that goes with x is laid out in the same order.
#pragma once

#include <spikeforge/runtime/launch.h>

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/SmallVector.h>

#include <optional>

namespace spikeforge::ops {

using SymSizes = c10::SmallVector<c10::SymInt, 5>;

// The non-time dimensions of x, dense in some order. Symbolic, since graphs are traced with symbolic sizes.
struct Layout {
  c10::SymInt steps;
  c10::SymInt neurons;
  SymSizes sizes;
  SymSizes strides;

  // [T, *shape] or [*shape] in this layout.
  at::Tensor empty_sequence(const at::TensorOptions& options) const;
  at::Tensor empty_step(const at::TensorOptions& options) const;
  // [count, n_states, *shape], one state after the other.
  at::Tensor empty_checkpoints(const c10::SymInt& count, std::int64_t n_states, const at::TensorOptions& options) const;
};

// x itself where its non-time dimensions are dense, else a contiguous copy.
at::Tensor with_dense_steps(const at::Tensor& x);

// Of an x that with_dense_steps has seen.
Layout layout_of(const at::Tensor& x);

// A [*shape] tensor in the layout's order: itself where it lies so, else a copy.
at::Tensor step_in_layout(const at::Tensor& step, const Layout& layout);

// Checkpoints in the layout's order, which is not always that of the forward pass: x may come back from a saved-tensor
// hook with other strides.
at::Tensor checkpoints_in_layout(const at::Tensor& checkpoints, const Layout& layout);

// A view of a [T, *shape] tensor, read in place where possible: in the layout's order, or expanded from one element a
// row. `kept` holds what the view points to.
SequenceView view_sequence(const at::Tensor& sequence, const Layout& layout, at::Tensor& kept);
// The same of a [*shape] tensor, as a sequence of one step.
SequenceView view_step(const at::Tensor& step, const Layout& layout, at::Tensor& kept);

// A tensor parameter that broadcasts against `shape`, read in place where its varying dimensions are neighbours in
// memory order.
ParamView view_param(const at::Tensor& param, const Layout& layout, at::Tensor& kept);

DType dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(DType type);

}  // namespace spikeforge::ops
