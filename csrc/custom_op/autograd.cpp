// Differentiation like that of torch's own operators: a node of the graph in reverse mode, tangents of the results in
// forward mode. (torch::autograd::Function supports neither forward mode nor torch.func.)
#include "csrc/custom_op/internal/call_of_user.h"
#include "csrc/custom_op/internal/operator.h"
#include "ops/common/tangents.h"
#include "ops/common/torch_versions.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <utility>

namespace spikeforge::custom_op {
namespace {

using ops::autograd::has_tangent;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// One tensor of one argument.
struct Slot {
  std::size_t argument;
  bool is_differentiable;
};

// The graph node of a call, with its arguments. Tensors are saved through autograd.
class Backward final : public Node {
 public:
  Backward(std::shared_ptr<const Operator> op, Values values) : op_(std::move(op)) {
    torch::autograd::edge_list edges;
    op_->for_each_tensor(values, [&](std::size_t i, const at::Tensor& t) {
      slots_.push_back({i, op_->is_differentiable[i] != 0});
      edges.push_back(t.defined() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
      saved_.emplace_back(t, /*is_output=*/false);
    });
    set_next_edges(std::move(edges));
    for (std::size_t i = 0; i < values.size(); ++i)
      values_.push_back(exchanged(op_->kinds[i], values[i], [](const at::Tensor&) { return at::Tensor(); }));
  }

  void save_results(Tensors results) {
    for (const at::Tensor& t : results) saved_results_.emplace_back(t, /*is_output=*/true);
  }

  std::string name() const override { return op_->name + " backward"; }

  void release_variables() override {
    const std::scoped_lock lock(mutex_);
    for (SavedVariable& saved : saved_) saved.reset_data();
    for (SavedVariable& saved : saved_results_) saved.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    const Operator& op = *op_;
    TORCH_CHECK_NOT_IMPLEMENTED(
        op.definition.vjp.index() != 0, op.name,
        " has no vjp, so it cannot be differentiated: define it with one (vjp), or detach() the "
        "arguments of the call");
    std::vector<char> wanted(op.argument_count());
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (!task_should_compute_output(s)) continue;
      TORCH_CHECK_NOT_IMPLEMENTED(
          slots_[s].is_differentiable, op.name, ": argument ", op.argument_name(slots_[s].argument),
          " is not among its differentiable arguments, but a gradient is required: detach() it");
      wanted[slots_[s].argument] = true;
    }
    const std::vector<c10::IValue> values = unpack_arguments();
    const TensorVector results = unpack_results();
    for (std::size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].defined()) grads[i] = input_metadata(i).zeros_like();

    Arguments in = op.arguments(values);
    ArgumentsAccess::results(in, results);
    ArgumentsAccess::wanted(in, wanted);
    return placed(gradients(in, values, results, grads), values);
  }

 private:
  std::vector<c10::IValue> unpack_arguments() {
    const std::scoped_lock lock(mutex_);
    std::vector<c10::IValue> values;
    values.reserve(values_.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < values_.size(); ++i)
      values.push_back(
          exchanged(op_->kinds[i], values_[i], [&](const at::Tensor&) { return saved_[next++].unpack(); }));
    return values;
  }

  TensorVector unpack_results() {
    const std::scoped_lock lock(mutex_);
    TensorVector results;
    for (const SavedVariable& saved : saved_results_) results.push_back(saved.unpack(getptr()));
    return results;
  }

  TensorVector gradients(const Arguments& in, const std::vector<c10::IValue>& values, const TensorVector& results,
                         const variable_list& grads) const {
    if (const auto* const function = std::get_if<Vjp>(&op_->definition.vjp))
      return call_of_user(op_->name, "its vjp", [&] { return (*function)(in, grads); });
    const auto& operator_name = std::get<std::string>(op_->definition.vjp);
    const auto vjp = c10::Dispatcher::singleton().findSchema({operator_name, ""});
    TORCH_CHECK(vjp.has_value(), op_->name, ": its vjp, ", operator_name, ", is no longer registered");
    torch::jit::Stack stack(grads.begin(), grads.end());
    stack.insert(stack.end(), values.begin(), values.end());
    stack.insert(stack.end(), results.begin(), results.end());
    vjp->callBoxed(stack);
    TensorVector list;
    for (const c10::IValue& value : stack) {
      if (value.isTensor())
        list.push_back(value.toTensor());
      else
        for (const at::Tensor& t : value.toTensorList()) list.push_back(t);
    }
    return list;
  }

  // Returns one gradient per slot. Shapes are checked here, because autograd would reduce a gradient of another shape
  // by summation, and ignore a missing one.
  variable_list placed(TensorVector gradients, const std::vector<c10::IValue>& values) {
    const Operator& op = *op_;
    std::size_t expected = 0;
    for (const Slot& slot : slots_) expected += slot.is_differentiable ? 1 : 0;
    TORCH_CHECK_VALUE(gradients.size() == expected, op.name, ": its vjp must return ", expected,
                      expected == 1 ? " gradient" : " gradients",
                      ", one for each tensor of the differentiable arguments, but returned ", gradients.size());
    variable_list list(slots_.size());
    std::size_t s = 0, k = 0;
    op.for_each_tensor(values, [&](std::size_t i, const at::Tensor& t) {
      const std::size_t slot = s++;
      if (!slots_[slot].is_differentiable) return;
      at::Tensor& gradient = gradients[k++];
      if (!task_should_compute_output(slot)) return;
      const std::string argument = op.argument_name(i);
      TORCH_CHECK_VALUE(gradient.defined(), op.name, ": its vjp returned no gradient for ", argument,
                        ", which is required; if it is zero, return zeros");
      TORCH_CHECK_VALUE(gradient.sym_sizes() == t.sym_sizes(), op.name, ": its vjp must return ", argument,
                        " a gradient of its shape, ", t.sym_sizes(), ", but returned ", gradient.sym_sizes());
      TORCH_CHECK_TYPE(gradient.scalar_type() == t.scalar_type(), op.name, ": its vjp must return ", argument,
                       " a gradient of its type, ", t.scalar_type(), ", but returned ", gradient.scalar_type());
      list[slot] = std::move(gradient);
    });
    return list;
  }

  const std::shared_ptr<const Operator> op_;
  std::vector<Slot> slots_;
  std::vector<c10::IValue> values_;  // with undefined tensors for those in saved_
  std::vector<SavedVariable> saved_, saved_results_;
};

void below_autograd(const DispatchedCall& call) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  call.handle.redispatchBoxed(call.keys & c10::after_ADInplaceOrView_keyset, &call.stack);
}

// Calls the operator at the primal values, which reverse mode may differentiate too, and its rule for tangents.
void with_tangents(const DispatchedCall& call) {
  const Operator& op = *call.op;
  TORCH_CHECK_NOT_IMPLEMENTED(op.definition.jvp.has_value(), op.name,
                              " has no jvp, so forward-mode differentiation is refused: give the CustomOp a .jvp(...)");
  torch::jit::Stack primals;
  TensorVector tangents;
  const Values values = op.values(call.stack);
  for (std::size_t i = 0; i < values.size(); ++i)
    primals.push_back(exchanged(op.kinds[i], values[i], [&](const at::Tensor& t) {
      TORCH_CHECK_NOT_IMPLEMENTED(op.is_differentiable[i] || !has_tangent(t), op.name, ": argument ",
                                  op.argument_name(i), " is not among its differentiable arguments, but has a tangent");
      at::Tensor primal = t.defined() ? t._fw_primal(/*level=*/0) : t;
      if (op.is_differentiable[i])
        tangents.push_back(has_tangent(t) ? t._fw_grad(0) : t.defined() ? at::zeros_like(primal) : t);
      return primal;
    }));
  torch::jit::Stack called = primals;
  call.handle.callBoxed(&called);
  const TensorVector rates =
      call_of_user(op.name, "its jvp", [&] { return (*op.definition.jvp)(op.arguments(primals), tangents); });
  op.check_results("its jvp", rates);
  TensorVector results;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    at::Tensor result = called[i].toTensor();
    TORCH_CHECK_VALUE(rates[i].sym_sizes() == result.sym_sizes(), op.name, ": its jvp must return result ", i,
                      " a tangent of its shape, ", result.sym_sizes(), ", but returned ", rates[i].sym_sizes());
    if (torch::autograd::isDifferentiableType(result.scalar_type()))
      result._set_fw_grad(rates[i], /*level=*/0, /*is_inplace_op=*/false);
    results.push_back(std::move(result));
  }
  op.replace(call.stack, std::move(results));
}

}  // namespace

void call_with_autograd(const DispatchedCall& call) {
  const Operator& op = *call.op;
  const Values values = op.values(call.stack);
  bool needs_gradient = false, is_dual = false;
  op.for_each_tensor(values, [&](std::size_t, const at::Tensor& t) {
    needs_gradient = needs_gradient || (t.defined() && t.requires_grad());
    is_dual = is_dual || has_tangent(t);
  });
  if (is_dual) return with_tangents(call);
  if (!needs_gradient || !at::GradMode::is_enabled()) return below_autograd(call);

  const auto node = ops::make_node<Backward>(call.op, values);
  below_autograd(call);
  TensorVector results;
  for (std::size_t i = call.stack.size() - op.result_count(); i < call.stack.size(); ++i) {
    const at::Tensor& result = call.stack[i].toTensor();
    if (torch::autograd::isDifferentiableType(result.scalar_type()))
      torch::autograd::set_history(result, node);
    else
      node->add_input_metadata(Node::undefined_input());
    results.push_back(result);
  }
  if (op.definition.save_results) node->save_results(results);
}

}  // namespace spikeforge::custom_op
