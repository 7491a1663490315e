// The Autograd kernel of backward operators that are not differentiable themselves.
#pragma once

#include "ops/multistep/autograd.h"

#include <algorithm>

namespace spikeforge::ops::recurrent {

// Throws the error for second derivatives.
struct RefusingRule {
  static constexpr bool is_traceable = true;

  static autograd::variable_list backward(autograd::AutogradContext* ctx, const autograd::variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, ctx->saved_data.at("why").toStringRef());
  }
};

// Runs a backward operator. `weights` are those of its connections; `why` is the error of second derivatives.
template <class Call>
Tensors backward_once(const char* name, const Call& call, const at::Tensor& weights, const char* why) {
  autograd::refuse_tangents(name, autograd::any_dual(call) || autograd::has_tangent(weights));
  autograd::variable_list given = autograd::given_tensors(call);
  given.push_back(weights);
  for (const at::TensorList list : {call.grad_outputs, call.grad_states})
    std::copy_if(list.begin(), list.end(), std::back_inserter(given), [](const at::Tensor& t) { return t.defined(); });
  if (std::any_of(given.begin(), given.end(), autograd::wants_gradient))
    return autograd::record<RefusingRule>(given, [&](autograd::AutogradContext* ctx) {
      ctx->saved_data["why"] = std::string(why);
      return call_backward(call);
    });
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_backward(call);
}

}  // namespace spikeforge::ops::recurrent
