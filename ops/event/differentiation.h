// Shared by the Autograd kernels of the products.
#pragma once

#include "ops/common/record.h"
#include "ops/event/jit.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <vector>

namespace spikeforge::ops::sparse {

using autograd::AutogradContext;
using autograd::variable_list;

using autograd::differentiable;

// Returns the result of an in-place operator, named `op` plus an underscore. Throws if a gradient is required, because
// the original values are lost.
template <class Compute> auto without_gradient(const char* op, at::TensorList inputs, Compute&& compute) {
  autograd::refuse_tangents(op, std::any_of(inputs.begin(), inputs.end(), autograd::has_tangent));
  TORCH_CHECK_NOT_IMPLEMENTED(std::none_of(inputs.begin(), inputs.end(), autograd::wants_gradient), op,
                              "_: what changes in place has no gradient; call ", op,
                              ", which returns a new tensor, or detach the arguments that require a gradient");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return compute();
}

inline void save_options(AutogradContext* ctx, const Options& options) {
  ctx->saved_data["rows"] = options.rows;
  ctx->saved_data["cols"] = options.cols;
  ctx->saved_data["options"] =
      c10::List<std::int64_t>({options.transpose, options.matrix, static_cast<std::int64_t>(options.values),
                               options.deterministic, options.unchecked});
}

inline Options saved_options(AutogradContext* ctx) {
  const auto& data = ctx->saved_data;
  const c10::List<std::int64_t> options = data.at("options").toIntList();
  return {data.at("rows").toSymInt(),          data.at("cols").toSymInt(), options.get(0) != 0, options.get(1) != 0,
          static_cast<Values>(options.get(2)), options.get(3) != 0,        options.get(4) != 0};
}

inline void save_draw(AutogradContext* ctx, const Draw& draw) {
  ctx->saved_data["prob"] = draw.prob;
  ctx->saved_data["seed"] = draw.seed;
  ctx->saved_data["distribution"] = static_cast<std::int64_t>(draw.distribution);
}

inline Draw saved_draw(AutogradContext* ctx) {
  const auto& data = ctx->saved_data;
  return {data.at("prob").toDouble(), data.at("seed").toInt(),
          static_cast<Distribution>(data.at("distribution").toInt())};
}

// Returns the gradient of a distribution's parameters. The result is linear in them, so each element is the sum of
// `grad` times the result for a unit vector of parameters.
template <class F> at::Tensor sums_of_units(const Draw& draw, const at::Tensor& grad, F&& result) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& unit : at::eye(numbers_of(draw.distribution), grad.options()).unbind())
    sums.push_back(result(unit).mul(grad).sum());
  return at::stack(sums);
}

// Returns options for the transposed product, with entries as numbers.
inline Options transposed(Options options) {
  options.transpose = !options.transpose;
  options.values = Values::number;
  return options;
}

}  // namespace spikeforge::ops::sparse
