// What operators whose derivatives are torch::autograd::Functions say to torch.func.
#pragma once

#include <ATen/FuncTorchTLS.h>
#include <c10/util/Exception.h>

#include <string_view>

namespace spikeforge::ops {

// Function::apply refuses the transforms of torch.func with a text of its own, and an exit before it must refuse them
// too.
inline void refuse_functorch(std::string_view op) {
  const auto& functorch = at::functorch::functorchTLSAccessor();
  if (functorch == nullptr) return;
  try {
    functorch->checkSupportsCppAutogradFunction();
  } catch (const c10::Error&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, op,
                                ": torch.func.grad, vjp and jvp do not differentiate this operator; "
                                "torch.autograd.grad does, and torch.vmap over it");
  }
}

}  // namespace spikeforge::ops
