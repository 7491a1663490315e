// event_linear: events times a dense matrix.
#pragma once

#include "ops/event/product.h"

namespace spikeforge::ops::sparse {

// Call the operators through the dispatcher.
at::Tensor call_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       bool graded);
at::Tensor call_linear_weight_grad(const at::Tensor& x, const at::Tensor& grad, c10::SymInt in, bool graded);

}  // namespace spikeforge::ops::sparse
