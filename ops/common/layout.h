// The memory layout of a [T, *shape] tensor, and the conversion of other tensors to it.
//
// Kernels see a sequence as [T, N]: N neurons in the order of x's memory, whatever that order is in terms of `shape`
// (contiguous, channels-last). All tensors of a call are brought into the same order.
#pragma once

#include "csrc/kernels/multistep/launch.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

namespace spikeforge::ops {

// Sizes are plain where memory is real, and symbolic where a graph is traced: Int is std::int64_t or c10::SymInt.
template <class Int> using Sizes = c10::SmallVector<Int, 6>;

// The non-time dimensions of x, dense in some order.
template <class Int> struct Layout {
  Int steps;
  Int neurons;
  Sizes<Int> sizes;
  Sizes<Int> strides;

  // [T, *shape] or [*shape] in this layout.
  at::Tensor empty_sequence(const at::TensorOptions& options) const;
  at::Tensor empty_step(const at::TensorOptions& options) const;
  // [count, n_states, *shape], one state after the other.
  at::Tensor empty_checkpoints(const Int& count, std::int64_t n_states, const at::TensorOptions& options) const;
  // How many there are after every `length` steps: none after the last one.
  Int checkpoint_count(std::int64_t length) const;
};

using PlainLayout = Layout<std::int64_t>;

// Returns x if its non-time dimensions are dense, else a contiguous copy.
template <class Int> at::Tensor with_dense_steps(const at::Tensor& x);

// For an x from with_dense_steps.
template <class Int> Layout<Int> layout_of(const at::Tensor& x);

// Returns the order of a layout's neurons if it is that of the shape, or one that swaps two groups of dimensions, as
// channels-last does: `fast` and `slow` are their numbers of neurons. Returns nullopt for other layouts.
template <class Int> struct Order { Int fast, slow; };
template <class Int> std::optional<Order<Int>> order_of(const Layout<Int>& layout);

// Temporary copies, kept as long as pointers to them are in use.
using Copies = std::vector<at::Tensor>;

// The functions below read a tensor in place if they can, and otherwise a copy in the layout's order.

// A [*shape] tensor.
const void* data_of_step(const at::Tensor& step, const PlainLayout& layout, Copies& copies);

// Checkpoints may have another order than in the forward pass: x may return from a saved-tensor hook with other
// strides.
const void* data_of_checkpoints(const at::Tensor& checkpoints, const PlainLayout& layout, Copies& copies);

// A [T, *shape] tensor; in place also where it is expanded from one element a row.
SequenceView view_sequence(const at::Tensor& sequence, const PlainLayout& layout, Copies& copies);
// The same of a [*shape] tensor, as a sequence of one step.
SequenceView view_step(const at::Tensor& step, const PlainLayout& layout, Copies& copies);
// A [T, *shape] tensor itself where view_sequence reads it in place beside x, else a copy in the order of x.
at::Tensor in_order_of(const at::Tensor& x, const at::Tensor& sequence);

// A tensor parameter that broadcasts against `shape`; in place where its varying dimensions are neighbours in memory
// order. One number that is in the host's memory is read, which waits for no device, and lets all neurons share it. A
// type that is neither x's nor `state`, the arithmetic's, is converted to that.
ParamView view_param(const at::Tensor& param, c10::ScalarType x, c10::ScalarType state, const PlainLayout& layout,
                     Copies& copies);

// For int32 lengths that broadcast against `shape`, and bools [T, ...] that broadcast against [T, *shape]. If they vary
// along dimensions that are not adjacent in memory, they are expanded to all neurons.
LengthsView view_lengths(const at::Tensor& lengths, const PlainLayout& layout, Copies& copies);
StartView view_start(const at::Tensor& start, const PlainLayout& layout, Copies& copies);

// A parameter's gradient from that of each neuron, summed over the neurons that share it. Deterministic: torch's sum
// has a fixed order.
at::Tensor sum_over_neurons(const at::Tensor& grad, const at::Tensor& param);

DType dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(DType type);

}  // namespace spikeforge::ops
