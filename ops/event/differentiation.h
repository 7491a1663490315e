// What the Autograd kernels of the products share.
#pragma once

#include <spikeforge/ops/event/product.h>

#include <torch/csrc/autograd/custom_function.h>

namespace spikeforge::ops::sparse {

// Whether a derivative by t is asked for, in reverse or in forward mode.
bool is_differentiated(const at::Tensor& t);

void save_form(torch::autograd::AutogradContext* ctx, const Form& form);
Form saved_form(torch::autograd::AutogradContext* ctx);

// The same matrix, and numbers, read the other way.
Form transposed(Form form);

}  // namespace spikeforge::ops::sparse
