// The memory layout of a [T, *shape] tensor, and the conversion of other tensors to it.
//
// Kernels process a sequence as [T, N]: N neurons in the order of x's memory, which may be any order of `shape`
// (contiguous, channels-last). All tensors of a call are converted to the same order.
#pragma once

#include "csrc/kernels/multistep/launch.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

namespace spikeforge::ops {

// Int is std::int64_t for tensors with memory, and c10::SymInt while a graph is traced.
template <class Int> using Sizes = c10::SmallVector<Int, 6>;

// The non-time dimensions of x, dense in some order.
template <class Int> struct Layout {
  Int steps;
  Int neurons;
  Sizes<Int> sizes;
  Sizes<Int> strides;

  // Allocate [T, *shape] or [*shape] in this layout.
  at::Tensor empty_sequence(const at::TensorOptions& options) const;
  at::Tensor empty_step(const at::TensorOptions& options) const;
  // Allocates [count, n_states, *shape], each state contiguous.
  at::Tensor empty_checkpoints(const Int& count, std::int64_t n_states, const at::TensorOptions& options) const;
  // Returns the number of checkpoints if there is one after every `length` steps, except after the last step.
  Int checkpoint_count(std::int64_t length) const;
};

using PlainLayout = Layout<std::int64_t>;

// Returns x if its non-time dimensions are dense, else a contiguous copy.
template <class Int> at::Tensor with_dense_steps(const at::Tensor& x);

// Returns the layout of an x from with_dense_steps.
template <class Int> Layout<Int> layout_of(const at::Tensor& x);

// Returns the order of a layout's neurons if it is that of the shape, or one that swaps two groups of dimensions, such
// as channels-last: `fast` and `slow` are the numbers of neurons in the groups. Returns nullopt for other layouts.
template <class Int> struct Order { Int fast, slow; };
template <class Int> std::optional<Order<Int>> order_of(const Layout<Int>& layout);

// Temporary copies, which must live as long as pointers to them are in use.
using Copies = std::vector<at::Tensor>;

// The functions below read a tensor in place if they can, and otherwise a copy in the layout's order.

// A [*shape] tensor.
const void* data_of_step(const at::Tensor& step, const PlainLayout& layout, Copies& copies);

// Checkpoints may have another order than in the forward pass: a saved-tensor hook may return x with other strides.
const void* data_of_checkpoints(const at::Tensor& checkpoints, const PlainLayout& layout, Copies& copies);

// A [T, *shape] tensor; also in place if it is expanded from one element per row.
SequenceView view_sequence(const at::Tensor& sequence, const PlainLayout& layout, Copies& copies);
// The same for a [*shape] tensor, as a sequence of one step.
SequenceView view_step(const at::Tensor& step, const PlainLayout& layout, Copies& copies);
// Returns a [T, *shape] tensor itself if view_sequence would read it in place, else a copy in the order of x.
at::Tensor in_order_of(const at::Tensor& x, const at::Tensor& sequence);

// A tensor parameter that broadcasts against `shape`; in place if its varying dimensions are adjacent in memory order.
// A single value in host memory is read, without synchronisation, and becomes a scalar for all neurons. A type other
// than x's and `state`, the type of the arithmetic, is converted to the latter.
ParamView view_param(const at::Tensor& param, c10::ScalarType x, c10::ScalarType state, const PlainLayout& layout,
                     Copies& copies);

// Return views of int32 lengths that broadcast against `shape`, and of bools [T, ...] that broadcast against [T,
// *shape]. If they vary along dimensions that are not adjacent in memory, they are expanded to all neurons.
LengthsView view_lengths(const at::Tensor& lengths, const PlainLayout& layout, Copies& copies);
StartView view_start(const at::Tensor& start, const PlainLayout& layout, Copies& copies);

// Returns the gradient of a parameter: the gradients of the neurons, summed over those that share a value.
// Deterministic, because torch's sum has a fixed order.
at::Tensor sum_over_neurons(const at::Tensor& grad, const at::Tensor& param);

DType dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(DType type);

}  // namespace spikeforge::ops
