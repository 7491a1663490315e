// An element-wise operator runs a neuron without states for one step, with the kernels of neurons.
#include "csrc/custom_op/elementwise.h"
#include "csrc/custom_op/internal/operator.h"
#include "csrc/graph/internal/dependence.h"
#include "ops/traced.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/scalar_tensor.h>

#include <optional>

namespace spikeforge::custom_op {
namespace {

// Assigns each argument of the operator to an input (tensors) or a parameter (scalars) of the neuron.
struct Plan {
  std::optional<Neuron> neuron;
  std::vector<std::size_t> tensors, numbers;  // arguments
  std::size_t results = 0;
};

c10::SymDimVector broadcast_shape(const Plan& plan, const Arguments& in) {
  c10::SymDimVector shape;
  for (const std::size_t i : plan.tensors) shape = at::infer_size_symdimvector(shape, in.sizes(i));
  return shape;
}

// One neuron per element, and one step: [1, *shape] in the layout of the results.
struct Call {
  std::vector<at::Tensor> inputs, params;

  Call(const Plan& plan, const Arguments& in) {
    const c10::SymDimVector shape = broadcast_shape(plan, in);
    for (const std::size_t i : plan.tensors)
      inputs.push_back(in.tensor(i).expand_symint(shape).contiguous().unsqueeze(0));
    const at::TensorOptions options = at::TensorOptions(at::kCPU).dtype(inputs[0].scalar_type());
    for (const std::size_t i : plan.numbers) params.push_back(at::scalar_tensor(in.number(i), options));
  }
};

std::vector<at::Tensor> run_elementwise(const Plan& plan, const Arguments& in) {
  const Call call(plan, in);
  std::vector<at::Tensor> outputs = std::get<0>((*plan.neuron)(call.inputs, {}, call.params));
  for (at::Tensor& t : outputs) t = t.squeeze(0);
  return outputs;
}

std::vector<at::Tensor> gradients(const Plan& plan, const Arguments& in, Tensors grads) {
  const Call call(plan, in);
  std::vector<at::Tensor> grad_outputs;
  for (const at::Tensor& grad : grads) grad_outputs.push_back(grad.unsqueeze(0));
  std::vector<bool> wants;
  for (const std::size_t i : plan.tensors) wants.push_back(in.wants_gradient(i));
  const std::vector<at::Tensor> wanted = plan.neuron->input_gradients(call.inputs, call.params, grad_outputs, wants);
  std::vector<at::Tensor> all;
  auto next = wanted.begin();
  for (const std::size_t i : plan.tensors) {
    if (!in.wants_gradient(i)) {
      all.emplace_back();
      continue;
    }
    const at::Tensor gradient = (next++)->squeeze(0);
    all.push_back(at::sum_to(gradient, in.sizes(i)));
  }
  return all;
}

std::string cell_name(const std::string& op) {
  const std::string local = op.substr(op.find("::") + 2);
  return ("elementwise_" + local).substr(0, 64);
}

}  // namespace

void throw_null_lambda(const std::string& schema) {
  TORCH_CHECK_VALUE(false, "elementwise of \"", schema, "\": the lambda is a null pointer");
}

CustomOp elementwise(std::string schema, std::size_t arity, const ElementwiseBody& body) {
  // The schema is parsed here only for the kinds of arguments; Operator checks the whole definition.
  Definition probe;
  probe.schema = schema;
  probe.cpu = Compute([](const Arguments&) { return std::vector<at::Tensor>(); });
  const Operator read(std::move(probe));
  TORCH_CHECK_VALUE(read.argument_count() == arity, read.name, ": its schema has ", read.argument_count(),
                    " arguments, but the lambda takes ", arity);

  Plan plan;
  plan.results = read.result_count();
  std::vector<std::string> differentiable;
  for (std::size_t i = 0; i < arity; ++i) {
    const ArgumentKind kind = read.kinds[i];
    TORCH_CHECK_VALUE(kind == ArgumentKind::tensor || kind == ArgumentKind::number || kind == ArgumentKind::integer,
                      read.name, ": argument ", read.argument_name(i),
                      " of an element-wise operator must be a Tensor, a "
                      "float or an int");
    (kind == ArgumentKind::tensor ? plan.tensors : plan.numbers).push_back(i);
    if (kind == ArgumentKind::tensor) differentiable.push_back(read.argument_name(i));
  }
  const graph::Signature signature{cell_name(read.name),
                                   graph::detail::numbered("x", plan.tensors.size()),
                                   {},
                                   graph::detail::numbered("p", plan.numbers.size())};
  const graph::Cell cell =
      graph::trace(signature, [&](graph::Values inputs, graph::Values, graph::Values params) -> graph::Step {
        std::vector<graph::Value> in_order;
        std::size_t x = 0, p = 0;
        for (std::size_t i = 0; i < arity; ++i)
          in_order.push_back(read.kinds[i] == ArgumentKind::tensor ? inputs[x++] : params[p++]);
        return graph::step(body(in_order), {});
      });
  TORCH_CHECK_VALUE(cell.output_count() == plan.results, read.name, ": its lambda must return ", plan.results,
                    plan.results == 1 ? " value" : " values", ", one for each result, but returns ",
                    cell.output_count());
  TORCH_CHECK_NOT_IMPLEMENTED(!graph::draws(cell.graph()), read.name,
                              ": an element-wise operator draws no random numbers; pass them as an argument");
  plan.neuron = Neuron(cell);

  CustomOp op(std::move(schema));
  op.shapes([plan](const Arguments& in) {
    return std::vector<Result>(plan.results,
                               {c10::SymIntArrayRef(broadcast_shape(plan, in)), in.dtype(plan.tensors[0])});
  });
  op.compute([plan](const Arguments& in) { return run_elementwise(plan, in); });
  op.vjp([plan](const Arguments& in, Tensors grads) { return gradients(plan, in, grads); });
  op.differentiable(std::move(differentiable));
  return op;
}

}  // namespace spikeforge::custom_op
