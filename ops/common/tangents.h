// Forward-mode differentiation: tangents of dual tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <string_view>

namespace spikeforge::ops::autograd {

inline bool has_tangent(const at::Tensor& t) { return t.defined() && t._fw_grad(/*level=*/0).defined(); }

inline void refuse_tangents(std::string_view op, bool any) {
  TORCH_CHECK_NOT_IMPLEMENTED(!any, op,
                              ": forward-mode differentiation (torch.func.jvp, jacfwd, dual numbers) is not "
                              "implemented; torch.autograd.grad and torch.func.grad, vjp and jacrev are");
}

}  // namespace spikeforge::ops::autograd
