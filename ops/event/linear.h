// event_linear: events times a dense matrix.
#pragma once

#include "ops/event/product.h"

namespace spikeforge::ops::sparse {

// True if x is packed: event_linear takes bool or floating point [..., in], or the result of pack_events for it, int32.
bool is_packed(const at::Tensor& x);

// Every check of the call: all that kernels take for granted.
void check_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, bool graded);

// [..., out]
c10::SymDimVector linear_sizes(const at::Tensor& x, const at::Tensor& weight);

// Its kernel on a GPU.
event::KernelSpec gpu_linear(const at::Tensor& x, const at::Tensor& weight, bool graded);

// The operators, through the dispatcher.
at::Tensor call_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       bool graded);
at::Tensor call_linear_weight_grad(const at::Tensor& x, const at::Tensor& grad, c10::SymInt in, bool graded);

}  // namespace spikeforge::ops::sparse
