// Products of messages and weights that are floating-point tensors of integer values. The forward pass is that of the
// integers; the derivative is that of a real product, straight-through for the shift and the wrap.
#include "ops/common/library.h"
#include "ops/common/record.h"
#include "ops/loihi/connections.h"

#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace spikeforge::ops {
namespace {

using at::Tensor;
using autograd::AutogradContext;
using autograd::variable_list;

// The shift and the width of a product's sums.
struct Sums {
  std::int64_t num_message_bits, weight_exp, bits;

  Tensor messages(const Tensor& x) const { return num_message_bits == 0 ? x.ne(0) : x; }
  Tensor result(const Tensor& sums, const Tensor& x) const {
    return shifted_sums(sums, weight_exp, bits).to(x.scalar_type());
  }
  Tensor grad_sums(const Tensor& grad) const { return grad.mul(std::ldexp(1.0, static_cast<int>(weight_exp))); }

  void save(AutogradContext* ctx) const {
    ctx->saved_data["sums"] = c10::List<std::int64_t>({num_message_bits, weight_exp, bits});
  }
  static Sums saved(AutogradContext* ctx) {
    const c10::List<std::int64_t> list = ctx->saved_data.at("sums").toIntList();
    return {list.get(0), list.get(1), list.get(2)};
  }
};

void check_call(const char* op, const Tensor& x, const Tensor& weight, const Sums& sums) {
  check_shift(op, sums.weight_exp, sums.bits);
  TORCH_CHECK_TYPE(
      (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble) && weight.scalar_type() == x.scalar_type(), op,
      ": x and weights must be float32 or float64, both of one type, but are ", x.scalar_type(), " and ",
      weight.scalar_type());
}

// ---- below autograd ----

Tensor float_product(const Tensor& x, const Tensor& weight, std::int64_t num_message_bits, std::int64_t weight_exp,
                     std::int64_t bits) {
  using Product = Tensor(const Tensor&, const Tensor&, std::int64_t);
  static const auto product = find_operator<Product>("spikeforge::loihi_product");
  const Sums sums{num_message_bits, weight_exp, bits};
  check_call("loihi_float_product", x, weight, sums);
  return sums.result(product.call(sums.messages(x).to(at::kInt), weight.to(at::kInt), num_message_bits), x);
}

Tensor float_sparse_product(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices,
                            const Tensor& values, std::int64_t num_message_bits, std::int64_t weight_exp,
                            std::int64_t bits) {
  using Product = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t);
  static const auto product = find_operator<Product>("spikeforge::loihi_sparse_product");
  const Sums sums{num_message_bits, weight_exp, bits};
  check_call("loihi_float_sparse_product", x, values, sums);
  const Tensor messages = sums.messages(x).to(at::kInt);
  return sums.result(product.call(messages, crow_indices, col_indices, values.to(at::kInt), num_message_bits), x);
}

// ---- derivatives ----

// The conversion of a message to a spike has a straight-through gradient: the gradient of x is that of the message.
struct FloatProductRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Sums sums = Sums::saved(ctx);
    const Tensor grad = sums.grad_sums(grads[0]);
    Tensor grad_x, grad_weight;
    if (ctx->needs_input_grad(0)) grad_x = at::mm(grad, saved[1]);
    if (ctx->needs_input_grad(1)) grad_weight = at::mm(grad.t(), sums.messages(saved[0]).to(grad.scalar_type()));
    return {grad_x, grad_weight};
  }
};

struct FloatSparseProductRule {
  static constexpr bool is_traceable = true;
  using Csr = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, bool, bool,
                     bool);
  using WeightGrad = Tensor(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, c10::SymInt,
                            c10::SymInt, bool, bool, std::string_view, bool);

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto csrmm = find_operator<Csr>("spikeforge::csrmm");
    static const auto weight_grad = find_operator<WeightGrad>("spikeforge::csr_weight_grad");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &values = saved[1];
    const Sums sums = Sums::saved(ctx);
    // The forward pass has verified the matrix.
    const Tensor grad = sums.grad_sums(grads[0]).t().contiguous(), col_indices = saved[3].to(at::kInt);
    const c10::SymInt rows = saved[2].sym_size(0) - 1, cols = x.sym_size(1);
    Tensor grad_x, grad_values;
    if (ctx->needs_input_grad(0))
      grad_x = csrmm
                   .call(values, col_indices, saved[2], grad, rows, cols, /*transpose=*/true, /*deterministic=*/false,
                         /*unchecked=*/true)
                   .t();
    if (ctx->needs_input_grad(1))
      grad_values = weight_grad.call(sums.messages(x).to(grad.scalar_type()).t().contiguous(), grad, col_indices,
                                     saved[2], rows, cols, /*transpose=*/false, /*matrix=*/true, "number",
                                     /*unchecked=*/true);
    return {grad_x, grad_values};
  }
};

// `saved` begins with the two inputs.
template <class Rule, class Compute>
Tensor recorded_product(const char* op, const variable_list& saved, const Sums& sums, Compute&& compute) {
  return autograd::differentiable<Rule>(op, at::TensorList(saved).slice(0, 2), compute, [&](AutogradContext* ctx) {
    ctx->save_for_backward(saved);
    sums.save(ctx);
  });
}

Tensor float_product_autograd(const Tensor& x, const Tensor& weight, std::int64_t num_message_bits,
                              std::int64_t weight_exp, std::int64_t bits) {
  static const auto op = find_operator<decltype(float_product)>("spikeforge::loihi_float_product");
  return recorded_product<FloatProductRule>("loihi_float_product", {x, weight}, {num_message_bits, weight_exp, bits},
                                            [&] { return op.call(x, weight, num_message_bits, weight_exp, bits); });
}

Tensor float_sparse_product_autograd(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices,
                                     const Tensor& values, std::int64_t num_message_bits, std::int64_t weight_exp,
                                     std::int64_t bits) {
  static const auto op = find_operator<decltype(float_sparse_product)>("spikeforge::loihi_float_sparse_product");
  return recorded_product<FloatSparseProductRule>(
      "loihi_float_sparse_product", {x, values, crow_indices, col_indices}, {num_message_bits, weight_exp, bits},
      [&] { return op.call(x, crow_indices, col_indices, values, num_message_bits, weight_exp, bits); });
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("loihi_float_product", TORCH_FN(float_product));
  library.impl("loihi_float_sparse_product", TORCH_FN(float_sparse_product));
}
SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("loihi_float_product", TORCH_FN(float_product_autograd));
  library.impl("loihi_float_sparse_product", TORCH_FN(float_sparse_product_autograd));
}

}  // namespace
}  // namespace spikeforge::ops
