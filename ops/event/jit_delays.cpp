// jit_csrmv_delayed: a random matrix whose connections have a weight and a delay, both redrawn in every call.
//   delay_law   delays
//   constant    [1]   d
//   uniform     [2]   integers from first to last, both included
//   normal      [2]   mean and standard deviation, rounded and clipped to the slots of the buffer
// The matrix is that of jit_csrmv with the same seed; buffer and step are as for event_csrmv_delayed.
#include "ops/event/jit_delays.h"
#include "csrc/kernels/event/note.h"
#include "ops/common/library.h"
#include "ops/event/differentiation.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace spikeforge::ops::sparse {
namespace {

void jit_deliver_in_place(const JitDeliverCall& call) {
  check_deliver(call);
  const auto& [weights, x, options, draw] = call.product;
  const ChangedBuffer changed(jit_deliver_name, call.buffer);
  if (!is_empty(call.product)) {
    const at::Tensor own_weights = changed.apart(weights).contiguous(), own_x = changed.apart(x).contiguous(),
                     own_step = changed.apart(call.step);
    const JitDeliverCall dense{{own_weights, own_x, options, draw}, call.delays, changed.contiguous(), own_step};
    if (call.buffer.is_cuda()) {
#if defined(SPIKEFORGE_WITH_CUDA)
      jit_deliver_cuda(dense);
#endif
    } else {
      event::note_kernels([&](const jit::Device&) { return gpu_jit_delivery(dense, random_rows(dense.product)); });
      jit_deliver_cpu(dense);
    }
  }
  changed.write_back();
}

// Returns the gradient of the entries. A connection of delay d reads the gradient d slots after the step: the
// transposed product delivers each slot of the gradient to slots that are indexed by delays, and matching ones are
// added.
at::Tensor delivered_back(const JitDeliverCall& call, const at::Tensor& grad) {
  const auto& [weights, x, options, draw] = call.product;
  const at::Tensor w = weights.to(grad.scalar_type());
  const std::int64_t slots = grad.sym_size(0).guard_int(__FILE__, __LINE__);
  const at::Tensor step = call.step.to(grad.device());
  const at::Tensor start = at::zeros({}, call.step.options());
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  sizes.insert(sizes.begin(), slots);
  at::Tensor sum;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const at::Tensor of_slot = grad.select(0, slot), nothing = at::zeros_symint(sizes, grad.options());
    const at::Tensor by_delay = call_deliver({{w, of_slot, transposed(options), draw}, call.delays, nothing, start});
    const at::Tensor delay = step.neg().add(slot).remainder(slots).unsqueeze(0);
    const at::Tensor part = by_delay.index_select(0, delay).squeeze(0);
    sum = sum.defined() ? sum.add(part) : part;
  }
  return sum.to(x.scalar_type());
}

at::Tensor delivered_by_weights(const JitDeliverCall& call, const at::Tensor& grad) {
  const JitCall& product = call.product;
  const at::Tensor nothing = at::zeros_like(grad);
  return sums_of_units(
             product.draw, grad,
             [&](const at::Tensor& unit) {
               return call_deliver({{unit, product.x, product.options, product.draw}, call.delays, nothing, call.step});
             })
      .to(product.weights.scalar_type());
}

struct JitDeliverRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto& data = ctx->saved_data;
    const JitDeliverCall call{{saved[0], saved[1], saved_options(ctx), saved_draw(ctx)},
                              {static_cast<Distribution>(data.at("delay_distribution").toInt()),
                               data.at("first").toDouble(), data.at("second").toDouble()},
                              grads[0],
                              saved[2]};
    at::Tensor grad_weights, grad_x;
    if (ctx->needs_input_grad(0)) grad_weights = delivered_by_weights(call, grads[0]);
    if (ctx->needs_input_grad(1)) grad_x = delivered_back(call, grads[0]);
    return {grad_weights, grad_x, grads[0]};
  }
};

at::Tensor jit_deliver_autograd(const JitDeliverCall& call) {
  const auto& [weights, x, options, draw] = call.product;
  return differentiable<JitDeliverRule>(
      jit_deliver_name, {weights, x, call.buffer}, [&] { return call_deliver(call); },
      [&](AutogradContext* ctx) {
        ctx->save_for_backward({call.product.weights, call.product.x, call.step.clone()});
        save_options(ctx, call.product.options);
        save_draw(ctx, call.product.draw);
        ctx->saved_data["delay_distribution"] = static_cast<std::int64_t>(call.delays.distribution);
        ctx->saved_data["first"] = call.delays.first;
        ctx->saved_data["second"] = call.delays.second;
      });
}

void jit_deliver_autograd_(const JitDeliverCall& call) {
  without_gradient(jit_deliver_name, {call.product.weights, call.product.x, call.buffer}, [&] { call_deliver_(call); });
}

// For lazily negated tensors, as in delays.cpp.
void jit_deliver_negated_(const JitDeliverCall& call) {
  const auto& [weights, x, options, draw] = call.product;
  const at::Tensor w = weights.resolve_neg(), entries = x.resolve_neg(), buffer = call.buffer.resolve_neg(),
                   step = call.step.resolve_neg();
  call_deliver_({{w, entries, options, draw}, call.delays, buffer, step});
  if (call.buffer.is_neg()) call.buffer.copy_(buffer);
}

// The lowered operators support vmap.
void register_jit_delayed(torch::Library& library) {
  library.impl("jit_csrmv_delayed", TORCH_FN((jit_deliver_kernel<at::Tensor, call_deliver>)));
  library.impl("jit_csrmv_delayed_", TORCH_FN((jit_deliver_kernel<void, call_deliver_>)));
}

SPIKEFORGE_SCHEMAS(library) {
  for (const bool in_place : {false, true}) {
    const std::string end = in_place ? "_" : "";
    const std::string middle =
        std::string(", Tensor") + (in_place ? "(a!)" : "") +
        " buffer, Tensor step, *, SymInt rows, SymInt cols, float prob, int seed, float[] delays";
    const std::string returns = std::string(") -> ") + (in_place ? "()" : "Tensor");
    const auto define = [&](const std::string& name, const std::string& options) {
      library.def(name + middle + options + returns);
    };
    define("jit_csrmv_delayed" + end + "(Tensor weights, Tensor events",
           ", str law=\"constant\", str delay_law=\"constant\", bool transpose=False, str values=\"event\", bool "
           "deterministic=False");
    define("jit_deliver" + end + "(Tensor weights, Tensor x",
           ", str law, str delay_law, bool transpose, str values, bool deterministic");
  }
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { register_jit_delayed(library); }

SPIKEFORGE_KERNELS(FuncTorchBatched, library) { register_jit_delayed(library); }

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("jit_deliver",
               TORCH_FN((jit_deliver_kernel<at::Tensor, deliver<JitDeliverCall, jit_deliver_in_place>>)));
  library.impl("jit_deliver_", TORCH_FN((jit_deliver_kernel<void, jit_deliver_in_place>)));
}

SPIKEFORGE_KERNELS(Negative, library) {
  library.impl("jit_deliver_", TORCH_FN((jit_deliver_kernel<void, jit_deliver_negated_>)));
}

SPIKEFORGE_KERNELS(Meta, library) {
  library.impl("jit_deliver", TORCH_FN((jit_deliver_kernel<at::Tensor, deliver_meta<JitDeliverCall>>)));
  library.impl("jit_deliver_", TORCH_FN((jit_deliver_kernel<void, check_deliver>)));
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("jit_deliver", TORCH_FN((jit_deliver_kernel<at::Tensor, jit_deliver_autograd>)));
  library.impl("jit_deliver_", TORCH_FN((jit_deliver_kernel<void, jit_deliver_autograd_>)));
}

// Calls f with the arguments of the lowered operators, in their order.
template <class Op> auto jit_call_with(const Op& op, const JitDeliverCall& call) {
  const auto& [weights, x, o, draw] = call.product;
  const std::array<double, 2> numbers = {call.delays.first, call.delays.second};
  const at::ArrayRef<double> delays(numbers.data(), static_cast<std::size_t>(numbers_of(call.delays.distribution)));
  return op.call(weights, x, call.buffer, call.step, o.rows, o.cols, draw.prob, draw.seed, delays,
                 name_of(draw.distribution), name_of(call.delays.distribution), o.transpose, name_of(o.values),
                 o.deterministic);
}

}  // namespace

DelayLaw parse_delay_law(const char* op, std::string_view name, at::ArrayRef<double> numbers) {
  DelayLaw law;
  law.distribution = parse_distribution(op, name, "delay_law");
  const auto count = static_cast<std::size_t>(numbers_of(law.distribution));
  TORCH_CHECK_VALUE(numbers.size() == count, op, ": delays must be ", count, " numbers under the law \"", name,
                    "\", but are ", numbers.size());
  law.first = numbers[0];
  law.second = count == 2 ? numbers[1] : 0;
  return law;
}

void check_deliver(const JitDeliverCall& call) {
  const char* const op = jit_deliver_name;
  const auto& [product, delays, buffer, step] = call;
  check_jit(op, product);
  check_ring(op, product.weights, product.x, product.options, buffer, step);
  const c10::SymInt slots = buffer.sym_size(0);
  const auto [distribution, first, second] = delays;
  if (distribution == Distribution::normal) {
    TORCH_CHECK_VALUE(std::isfinite(first) && std::isfinite(second) && second >= 0, op,
                      ": delays must be a mean and a standard deviation of 0 or more, but are ", first, " and ",
                      second);
    return;
  }
  const double last = distribution == Distribution::uniform ? second : first;
  TORCH_CHECK_VALUE(first == std::floor(first) && last == std::floor(last) && first >= 0 && first <= last, op,
                    ": delays must be whole numbers from 0 on, the last not before the first, but are ", first, " and ",
                    last);
  TORCH_CHECK_VALUE(last <= 16777216.0 && c10::SymInt(static_cast<std::int64_t>(last)) < slots, op,
                    ": delays must be below ", slots, ", for the buffer has ", slots, " slots, but the largest is ",
                    last);
}

event::RandomDelays random_delays(const JitDeliverCall& call) {
  return {.first = static_cast<float>(call.delays.first),
          .second = static_cast<float>(call.delays.second),
          .most = static_cast<int>(call.buffer.size(0) - 1),
          .distribution = call.delays.distribution};
}

std::vector<event::KernelSpec> gpu_jit_delivery(const JitDeliverCall& call, const RandomRows& matrix) {
  event::KernelSpec spec = gpu_jit(call.product, matrix);
  const Options& options = call.product.options;
  spec.delays = event::Delays::drawn;
  spec.sums =
      is_deterministic(options) ? event::sums_by_columns(options.values, spec.homogeneous, true) : event::Sums::floats;
  if (spec.sums == event::Sums::floats) return {spec};
  return {spec, gpu_jit_finish(spec)};
}

at::Tensor call_deliver(const JitDeliverCall& call) {
  static const auto op =
      find_operator<decltype(jit_deliver_kernel<at::Tensor, call_deliver>)>("spikeforge::jit_deliver");
  return jit_call_with(op, call);
}

void call_deliver_(const JitDeliverCall& call) {
  static const auto op = find_operator<decltype(jit_deliver_kernel<void, call_deliver_>)>("spikeforge::jit_deliver_");
  jit_call_with(op, call);
}

}  // namespace spikeforge::ops::sparse
