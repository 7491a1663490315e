// What the Autograd kernels of the products share.
#pragma once

#include <spikeforge/ops/event/product.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace spikeforge::ops::sparse {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Whether a derivative by t is asked for, in reverse or in forward mode.
inline bool is_differentiated(const at::Tensor& t) {
  return (at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(/*level=*/0).defined();
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

// The same matrix, and numbers, read the other way.
inline Options transposed(Options options) {
  options.transpose = !options.transpose;
  options.values = Values::number;
  return options;
}

}  // namespace spikeforge::ops::sparse
