// Reverse-mode differentiation of an operator by a class with a backward function, as in torch::autograd::Function.
// Function::apply does not support the transforms of torch.func; record() creates the same node as torch's
// own operators, so that torch.func.grad, vjp, jacrev and per-sample gradients work.
//
// Only files that register Autograd kernels include this header, since autograd's headers compile slowly.
#pragma once

#include "ops/common/tangents.h"
#include "ops/common/torch_versions.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace spikeforge::ops::autograd {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

inline bool wants_gradient(const at::Tensor& t) {
  return at::GradMode::is_enabled() && t.defined() && t.requires_grad();
}

// The node of a rule. It overrides the name, which torch reads in every backward pass, because the default demangles a
// type name each time.
template <class Rule> class RuleNode : public torch::autograd::CppNode<Rule> {
 public:
  std::string name() const override {
    static const std::string demangled = torch::autograd::CppNode<Rule>::name();
    return demangled;
  }
};

// Returns the results of forward(context), with gradients for `inputs`; at least one must require it. Rule has
//   static constexpr bool is_traceable;
//   static variable_list backward(AutogradContext*, const variable_list& grads);   one gradient for each input
// `forward` saves the values for backward in the context, and calls operators below autograd. A forward(Node&)
// receives the node, which contains the context.
template <class Rule, class Node = RuleNode<Rule>, class Forward>
auto record(at::TensorList inputs, Forward&& forward) {
  const auto node = make_node<Node>();
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  node->input_info_.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(input));
    node->input_info_.emplace_back(input);
  }
  node->is_variable_input_.assign(inputs.size(), true);
  node->set_next_edges(std::move(edges));
  node->set_ctx_grad_fn(node);
  auto outputs = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if constexpr (std::is_invocable_v<Forward, Node&>)
      return std::forward<Forward>(forward)(*node);
    else
      return std::forward<Forward>(forward)(&node->ctx_);
  }();
  for (const at::Tensor& output : outputs) {
    torch::autograd::set_history(output, node);
    node->output_info_.emplace_back(output);
  }
  node->save_variables_to_ctx();
  return outputs;
}

// Returns the result of compute(), which calls operators below autograd. It is recorded if one of `inputs` requires a
// gradient; keep(context) then saves the values for Rule::backward.
template <class Rule, class Compute, class Keep>
at::Tensor differentiable(std::string_view op, at::TensorList inputs, Compute&& compute, Keep&& keep) {
  refuse_tangents(op, std::any_of(inputs.begin(), inputs.end(), has_tangent));
  if (std::none_of(inputs.begin(), inputs.end(), wants_gradient)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return compute();
  }
  return record<Rule>(inputs, [&](AutogradContext* ctx) {
    variable_list results{compute()};
    keep(ctx);
    return results;
  })[0];
}

}  // namespace spikeforge::ops::autograd
