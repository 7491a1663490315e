// Gradients of products with delays. A matrix with delays is one with more columns: a connection to column j with delay
// d leads to column slot * cols + j of the concatenated slots. By columns (e A) that matrix has the rows of the stored
// one, and gradients are products with it. By rows (A e) it does not, and gradients are sums over connections. All
// operators are differentiable, so that second derivatives are correct too.
#include "ops/common/library.h"
#include "ops/event/delays.h"
#include "ops/event/differentiation.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace spikeforge::ops::sparse {

at::Tensor counted(const at::Tensor& x, Values values, c10::ScalarType type) {
  if (values == Values::number) return x.to(type);
  const at::Tensor active = x.gt(0);
  const at::Tensor zero = at::zeros({}, x.options().dtype(type));
  at::Tensor count = values == Values::event ? active.to(type) : at::where(active, x.to(type), zero);
  if (x.scalar_type() == c10::ScalarType::Bool) return count;
  const at::Tensor through = at::nan_to_num(x, 0, 0, 0).to(type);
  return count.detach().add(through.sub(through.detach()));
}

namespace {

class Delayed {
 public:
  // `grad` is the gradient of the result.
  Delayed(const DeliverCall& call, const at::Tensor& grad)
      : call_(call),
        options_(call.product.options),
        slots_(grad.sym_size(0)),
        grad_(grad),
        side_by_side_(grad.movedim(0, -2).flatten(-2)) {}

  at::Tensor grad_x() const {
    const auto& [weights, indices, indptr, x, options] = call_.product;
    const at::Tensor w = weights.to(grad_.scalar_type());
    if (has_matrix())
      return call_product({w, wide_indices(), indptr, side_by_side_, wide(false, Values::number)}).to(x.scalar_type());
    const at::Tensor zeros = at::zeros_symint(x.sym_sizes(), grad_.options());
    return zeros.index_add(-1, sources(), arrived().mul(w.flatten())).to(x.scalar_type());
  }

  at::Tensor grad_weights() const {
    const auto& [weights, indices, indptr, x, options] = call_.product;
    if (weights.sym_numel() == 1) {
      // All nonzeros share one weight, whose gradient is the sum of grad times the result for a weight of 1.
      const at::Tensor one = at::ones({1}, grad_.options());
      const at::Tensor unweighted =
          call_deliver({{one, indices, indptr, x, options}, call_.delays, at::zeros_like(grad_), call_.step});
      return unweighted.mul(grad_).sum().to(weights.scalar_type()).view_symint(weights.sym_sizes());
    }
    if (has_matrix())
      return call_weight_grad({x, side_by_side_, wide_indices(), indptr, wide(true, options.values)})
          .to(weights.scalar_type());
    const at::Tensor each = counted(x, options.values, grad_.scalar_type()).index_select(-1, sources()).mul(arrived());
    const at::Tensor sum = each.dim() == 1 ? each : each.flatten(0, -2).sum(0);
    return sum.view_symint(weights.sym_sizes()).to(weights.scalar_type());
  }

 private:
  const c10::SymInt& out() const { return options_.out(); }

  // True if the products support the matrix with the columns of all slots.
  bool has_matrix() const { return options_.transpose && slots_ * out() < (std::int64_t{1} << 31); }

  // Returns the begin of each connection's slot, with the shape of indices, or one element.
  at::Tensor slot_begins() const {
    const at::Tensor step = call_.step.to(call_.delays.device());
    return call_.delays.to(at::kLong).add(step.remainder(slots_)).remainder(slots_).mul(out());
  }
  at::Tensor wide_indices() const { return slot_begins().add(call_.product.indices).to(at::kInt); }
  Options wide(bool transpose, Values values) const {
    return {options_.rows,     slots_ * options_.cols, transpose, false, values, options_.deterministic,
            /*unchecked=*/true};
  }

  // Return for each connection its row, the entry that it reads, and the gradient at its target.
  at::Tensor rows() const {
    const auto& indptr = call_.product.indptr;
    const at::Tensor& indices = call_.product.indices;
    const at::Tensor each = at::arange(options_.rows, indices.options().dtype(at::kLong));
    if (!indptr) return each.unsqueeze(1).expand_symint(indices.sym_sizes()).flatten();
    return at::repeat_interleave_symint(each, indptr->to(at::kLong).diff(), /*dim=*/0, indices.sym_size(0));
  }
  at::Tensor columns() const { return call_.product.indices.flatten().to(at::kLong); }
  at::Tensor sources() const { return options_.transpose ? rows() : columns(); }
  at::Tensor arrived() const {
    return side_by_side_.index_select(-1, slot_begins().flatten().add(options_.transpose ? columns() : rows()));
  }

  const DeliverCall& call_;
  const Options& options_;
  c10::SymInt slots_;
  at::Tensor grad_;
  at::Tensor side_by_side_;  // [*batch, slots * out]
};

struct DeliverRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::optional<at::Tensor> indptr = saved[3].defined() ? std::optional(saved[3]) : std::nullopt;
    const DeliverCall call{{saved[0], saved[2], indptr, saved[1], saved_options(ctx)}, saved[4], grads[0], saved[5]};
    const Delayed delayed(call, grads[0]);
    at::Tensor grad_weights, grad_x;
    if (ctx->needs_input_grad(0)) grad_weights = delayed.grad_weights();
    if (ctx->needs_input_grad(1)) grad_x = delayed.grad_x();
    return {grad_weights, grad_x, grads[0]};
  }
};

at::Tensor deliver_autograd(const DeliverCall& call) {
  return differentiable<DeliverRule>(
      call.name(), {call.product.weights, call.product.x, call.buffer}, [&] { return call_deliver(call); },
      [&](AutogradContext* ctx) {
        const auto& [weights, indices, indptr, x, options] = call.product;
        // The step is copied, because it may be advanced in place before the backward pass.
        ctx->save_for_backward({weights, x, indices, indptr.value_or(at::Tensor()), call.delays, call.step.clone()});
        save_options(ctx, options);
      });
}

void deliver_autograd_(const DeliverCall& call) {
  without_gradient(call.name(), {call.product.weights, call.product.x, call.buffer}, [&] { call_deliver_(call); });
}

struct TakeRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor step = ctx->get_saved_variables()[0];
    const at::Tensor &of_arrivals = grads[0], &of_buffer = grads[1];
    if (!of_arrivals.defined() && !of_buffer.defined()) return {at::Tensor()};
    const at::Tensor known = of_buffer.defined() ? of_buffer : of_arrivals;
    const c10::SymInt slots = ctx->saved_data.at("slots").toSymInt();
    const at::Tensor slot = step.to(known.device()).remainder(slots).unsqueeze(0);
    if (!of_arrivals.defined()) return {of_buffer.index_fill(0, slot, 0)};
    c10::SymDimVector sizes(of_arrivals.sym_sizes().begin(), of_arrivals.sym_sizes().end());
    sizes.insert(sizes.begin(), slots);
    const at::Tensor rest = of_buffer.defined() ? of_buffer : at::zeros_symint(sizes, of_arrivals.options());
    return {rest.index_copy(0, slot, of_arrivals.unsqueeze(0))};
  }
};

std::tuple<at::Tensor, at::Tensor> take_autograd(const at::Tensor& buffer, const at::Tensor& step) {
  autograd::refuse_tangents("take_arrivals", autograd::has_tangent(buffer));
  if (!autograd::wants_gradient(buffer)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_take(buffer, step);
  }
  variable_list results = autograd::record<TakeRule>({buffer}, [&](AutogradContext* ctx) {
    auto [arrivals, left] = call_take(buffer, step);
    ctx->save_for_backward({step.clone()});
    ctx->saved_data["slots"] = buffer.sym_size(0);
    return variable_list{arrivals, left};
  });
  return {results[0], results[1]};
}

at::Tensor take_autograd_(const at::Tensor& buffer, const at::Tensor& step) {
  return without_gradient("take_arrivals", {buffer}, [&] { return call_take_(buffer, step); });
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("csr_deliver", TORCH_FN((deliver_kernel<at::Tensor, deliver_autograd>)));
  library.impl("csr_deliver_", TORCH_FN((deliver_kernel<void, deliver_autograd_>)));
  library.impl("take_arrivals", TORCH_FN(take_autograd));
  library.impl("take_arrivals_", TORCH_FN(take_autograd_));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
