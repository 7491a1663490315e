#include "tests/properties/torch_reference.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include "csrc/graph/internal/copy.h"
#include "csrc/neuron/surrogate.h"

namespace spikeforge::test {
namespace {

using graph::Cell;
using graph::Graph;
using graph::Id;
using graph::Node;
using graph::Op;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns `value`, and adds `slope` to its derivative with respect to x.
class WithSlope : public torch::autograd::Function<WithSlope> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& value, const Tensor& x, const Tensor& slope) {
    (void)x;
    ctx->save_for_backward({slope});
    return value.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Tensor slope = ctx->get_saved_variables()[0];
    // A zero upstream gradient gives 0, even if the slope is infinite.
    return {grads[0], at::where(grads[0] == 0, at::zeros_like(slope), grads[0] * slope), Tensor()};
  }
};

Tensor with_slope(const Tensor& value, const Tensor& x, const Tensor& slope) {
  return WithSlope::apply(value, x, slope.detach());
}

using SurrogateGradient = double (*)(double, const double*);
constexpr SurrogateGradient surrogate_gradients[] = {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) \
  [](double u, const double* args) { return Struct<double>(args).gradient(u); },
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
};

Tensor surrogate_gradient(const Tensor& u, const graph::Surrogate& surrogate) {
  Tensor slope = at::zeros_like(u, at::kDouble);
  if (!surrogate.kind) return slope.to(u.dtype());
  const SurrogateGradient gradient = surrogate_gradients[static_cast<std::size_t>(*surrogate.kind)];
  const Tensor numbers = u.detach().to(at::kDouble).contiguous();
  for (std::int64_t i = 0; i < numbers.numel(); ++i)
    slope.mutable_data_ptr<double>()[i] = gradient(numbers.const_data_ptr<double>()[i], surrogate.args.data());
  return slope.to(u.dtype());
}

Tensor select(const Tensor& s, const Tensor& a, const Tensor& b) {
  return with_slope(at::where(s.detach() == 1, a, b), s, (a - b).detach());
}

Tensor spike(const Tensor& u, const Tensor& fired, const graph::Surrogate& surrogate) {
  return with_slope(fired.to(u.dtype()), u, surrogate_gradient(u, surrogate));
}

Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high) { return at::clamp(x, low, high); }

// Calls ATen's function of the same name, except for operations for which ATen has no function of this name and
// meaning.
Tensor operation(const Node& node, const Tensors& x) {
  switch (node.op) {
// clang-format off
#define SPIKEFORGE_UNARY(name) case Op::name: return at::name(x[0]);
#define SPIKEFORGE_TERNARY_OF(name, function) case Op::name: return function(x[0], x[1], x[2]);
// clang-format on
#define SPIKEFORGE_OP(...)
#define SPIKEFORGE_BINARY(name)
#define SPIKEFORGE_TERNARY(name)
#include "csrc/graph/ops.def"
    SPIKEFORGE_TERNARY_OF(clamp, clamp)
    SPIKEFORGE_TERNARY_OF(lerp, at::lerp)
    SPIKEFORGE_TERNARY_OF(where, at::where)
    SPIKEFORGE_TERNARY_OF(select, select)
    SPIKEFORGE_TERNARY_OF(add_gradient, with_slope)
#undef SPIKEFORGE_TERNARY_OF
#define SPIKEFORGE_TWO(name, function) \
  case Op::name: return function(x[0], x[1]);
    SPIKEFORGE_TWO(logical_or, at::logical_or)
    SPIKEFORGE_TWO(logical_and, at::logical_and)
    SPIKEFORGE_TWO(less, at::less)
    SPIKEFORGE_TWO(less_equal, at::less_equal)
    SPIKEFORGE_TWO(greater, at::greater)
    SPIKEFORGE_TWO(greater_equal, at::greater_equal)
    SPIKEFORGE_TWO(equal, at::eq)
    SPIKEFORGE_TWO(not_equal, at::not_equal)
    SPIKEFORGE_TWO(add, at::add)
    SPIKEFORGE_TWO(subtract, at::subtract)
    SPIKEFORGE_TWO(multiply, at::multiply)
    SPIKEFORGE_TWO(divide, at::divide)
    SPIKEFORGE_TWO(pow, at::pow)
    SPIKEFORGE_TWO(atan2, at::atan2)
    SPIKEFORGE_TWO(fmod, at::fmod)
    SPIKEFORGE_TWO(remainder, at::remainder)
    SPIKEFORGE_TWO(minimum, at::minimum)
    SPIKEFORGE_TWO(maximum, at::maximum)
#undef SPIKEFORGE_TWO
    case Op::neg: return at::neg(x[0]);
    case Op::logical_not: return at::logical_not(x[0]);
    case Op::leaky_relu: return at::where(x[0] > 0, x[0], x[0] * x[1]);
    case Op::elu:
      return at::where(x[0] <= 0, x[1] * at::expm1(x[0]), x[0]);  // the slope at 0 is alpha, as that of at::elu
    case Op::spike: return spike(x[0], x[0].detach() >= 0, node.surrogate);
    case Op::spike_strict: return spike(x[0], x[0].detach() > 0, node.surrogate);
    case Op::surrogate_gradient: return surrogate_gradient(x[0], node.surrogate);
    case Op::detach: return x[0].detach();
    default: break;  // arguments, constants and draws
  }
  return {};
}

Tensors results_of(const Graph& graph, const Tensors& arguments) {
  const std::vector<bool> live = live_nodes(graph);
  const Tensor& x = arguments[0];
  Tensors values(graph.size()), results;
  for (Id id = 0; id < graph.size(); ++id) {
    const Node& node = graph[id];
    if (id < arguments.size())
      values[id] = arguments[id].expand_as(x);
    else if (node.op == Op::constant)
      values[id] = at::full_like(x, node.number);
    else if (node.op == Op::truth)
      values[id] = at::full_like(x, node.number, at::kBool);
    else if (live[id]) {
      Tensors operands;
      for (const Id operand : graph.operands(id)) operands.push_back(values[operand]);
      values[id] = operation(node, operands);
    }
  }
  for (const Id result : graph.results()) results.push_back(values[result]);
  return results;
}

}  // namespace

Tensors run_torch_loop(const Cell& cell, const Tensors& inputs, const Tensors& states, const Tensors& params) {
  std::vector<Tensors> rows(cell.output_count() + cell.state_count());
  Tensors now = states;
  for (std::int64_t t = 0; t < inputs[0].size(0); ++t) {
    Tensors arguments;
    for (const Tensor& x : inputs) arguments.push_back(x[t]);
    for (const Tensors* const more : {&std::as_const(now), &params})
      arguments.insert(arguments.end(), more->begin(), more->end());
    const Tensors results = results_of(cell.graph(), arguments);
    for (std::size_t k = 0; k < results.size(); ++k) rows[k].push_back(results[k]);
    now.assign(results.begin() + static_cast<std::ptrdiff_t>(cell.output_count()), results.end());
  }
  Tensors sequences;
  for (const Tensors& row : rows) sequences.push_back(at::stack(row));
  return sequences;
}

}  // namespace spikeforge::test
