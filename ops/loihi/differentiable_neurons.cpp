// Calls of Loihi's neurons with floating-point tensors of integer values. They run neuron text, so that kernels,
// autograd, transforms and compilers are those of traced neurons.
#include "ops/common/checks.h"
#include "ops/loihi/connections.h"
#include "ops/loihi/neuron_call.h"
#include "ops/multistep/text_call.h"

#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace spikeforge::ops {
namespace {

using at::Tensor;
using MaybeTensor = LoihiCall::MaybeTensor;
using Number = Loihi<false, LoihiForm::plain>;  // for the order of its parameters

// The limit for u and v, and for counters and the values that they are compared with, because float32 is exact up to
// here.
constexpr std::int64_t most_state = std::int64_t{1} << 23;

// Converts a state or parameter, which must be of x's type or int32, to x's type.
Tensor as_x(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  TORCH_CHECK_TYPE(t.scalar_type() == x.scalar_type() || t.scalar_type() == at::kInt, op, ": ", name, " must be ",
                   x.scalar_type(), " or Int for a ", x.scalar_type(), " x, but is ", t.scalar_type());
  return t.to(x.scalar_type());
}

Tensor param(const LoihiCell& cell, const LoihiCall& call, std::size_t j) {
  const char* const op = cell.name.c_str();
  const CellParam& described = cell.params[j];
  const char* const name = described.name.c_str();
  const MaybeTensor given = call.params.get(j);
  if (given.has_value() && given->defined()) {
    Tensor tensor = as_x(op, name, *given, call.x);
    check_param({op, "x", call.x}, name, tensor);
    check_whole(op, name, tensor);
    check_elements(op, name, tensor, described.least, described.most);
    return tensor;
  }
  check_number(op, name, call.numbers[j], std::max<std::int64_t>(described.least, -most_state),
               std::min<std::int64_t>(described.most, most_state));
  return at::scalar_tensor(call.numbers[j], at::TensorOptions(call.x.scalar_type()));
}

// Returns bias_mant 2^bias_exp, rounded down as by an arithmetic shift, with the derivative of the unrounded value.
Tensor shifted_bias(const LoihiCell& cell, const LoihiCall& call) {
  const Tensor mant = param(cell, call, Number::bias_mant);
  const MaybeTensor given = call.params.get(Number::bias_exp);
  if (!given.has_value() || !given->defined()) {
    param(cell, call, Number::bias_exp);  // only to check it
    const double factor = std::ldexp(1.0, static_cast<int>(call.numbers[Number::bias_exp]));
    return factor >= 1 ? mant.mul(factor) : straight_through(mant.mul(factor).detach().floor(), mant.mul(factor));
  }
  const Tensor exp = param(cell, call, Number::bias_exp).detach().to(at::kLong);
  const Tensor one = at::scalar_tensor(1, exp.options());
  const Tensor up = at::bitwise_left_shift(one, exp.clamp_min(0)),
               down = at::bitwise_left_shift(one, exp.neg().clamp_min(0));
  const Tensor product = mant.mul(up.to(mant.scalar_type())).div(down.to(mant.scalar_type()));
  return straight_through(product.detach().floor(), product);
}

}  // namespace

std::vector<at::Tensor> run_differentiably(const LoihiCell& cell, const LoihiCall& call) {
  static const auto run = find_operator<traced::Run>("spikeforge::run");
  const char* const op = cell.name.c_str();
  const Tensor& x = call.x;
  TORCH_CHECK_TYPE(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, op,
                   ": x must be int32, or float32 or float64 to be differentiated, but is ", x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() >= 1, op, ": x must have shape [T, *shape], but has ", x.sym_sizes());
  c10::SmallVector<Tensor, 3> states;
  bool any = false;
  for (std::size_t s = 0; s < cell.states.size(); ++s) {
    const char* const name = cell.states[s].c_str();
    const MaybeTensor given = call.states.get(s);
    any = any || (given.has_value() && given->defined());
    if (!given.has_value() || !given->defined()) {
      states.push_back(at::zeros_symint(x.sym_sizes().slice(1), x.options()));
      continue;
    }
    states.push_back(as_x(op, name, *given, x));
    check_state({op, "x", x}, name, states.back());
    check_whole(op, name, states.back());
    check_elements(op, name, states.back(), s == 2 ? 0 : -most_state, most_state);
  }
  if (!any) states.clear();

  check_thresholds(cell, call.params, call.numbers);
  c10::SmallVector<Tensor, 8> params;
  for (std::size_t j = 0; j < cell.params.size(); ++j) {
    if (j == Number::bias_exp) continue;
    params.push_back(j == Number::bias_mant ? shifted_bias(cell, call) : param(cell, call, j));
  }
  auto [outputs, after] =
      run.call(fixed_lif_text(cell, surrogate_text(op, call.surrogate, call.surrogate_args), call.detach_reset), x,
               states, params, call.store_states,
               /*bits=*/0, call.lengths, call.start, /*scan=*/false, /*seed=*/{}, /*offset=*/{});
  std::vector<Tensor> all{std::move(outputs[0])};
  for (Tensor& state : after) all.push_back(std::move(state));
  return all;
}

}  // namespace spikeforge::ops
