// jit_csrmv and jit_csrmm: products of a random matrix that is never stored.
//
// Every entry of the [rows, cols] matrix is a connection with probability `prob`; `seed` determines the matrix, the
// same on every device, in both orders, for mv and mm, and for every distribution and type of the weights:
//   law        weights
//   constant   [1]   w
//   uniform    [2]   from low to high
//   normal     [2]   mean and standard deviation
// Weights have gradients. `values` determines the value of an entry x of `events`: "event" (1 if true, or x > 0;
// NaN is not), "graded" (x if x > 0) or "number" (x). Shapes, `transpose`, `deterministic` and the result are as in
// event_csrmv and event_csrmm. csrc/kernels/event/random_rows.h defines the drawing of connections.
#include "ops/event/jit.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/differentiation.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

namespace spikeforge::ops::sparse {
namespace {

// The average number of connections in a piece of a row: enough to amortise its start.
constexpr double connections_a_piece = 32;
constexpr std::int64_t widest_piece = 1 << 20;

template <bool matrix>
at::Tensor jit_csr(const at::Tensor& weights, const at::Tensor& events, c10::SymInt rows, c10::SymInt cols, double prob,
                   std::int64_t seed, std::string_view law, bool transpose, std::string_view values,
                   bool deterministic) {
  return jit_kernel<call_jit>(weights, events, std::move(rows), std::move(cols), prob, seed, law, transpose, matrix,
                              values, deterministic);
}

at::Tensor jit_product_meta(const JitCall& call) {
  check_jit(jit_name(call.options.matrix), call);
  return at::empty_symint(result_sizes(call.x, call.options), call.weights.options());
}

SPIKEFORGE_SCHEMAS(library) {
  const std::string size = ", *, SymInt rows, SymInt cols, float prob, int seed, str law";
  for (const std::string name : {"jit_csrmv", "jit_csrmm"})
    library.def(name + "(Tensor weights, Tensor events" + size +
                "=\"constant\", bool transpose=False, str values=\"event\", bool deterministic=False) -> Tensor");
  library.def("jit_product(Tensor weights, Tensor x" + size +
              ", bool transpose, bool matrix, str values, bool deterministic) -> Tensor");
}

// The lowered operators support vmap; otherwise torch would call the public ones once per map.
void register_jit(torch::Library& library) {
  library.impl("jit_csrmv", TORCH_FN(jit_csr<false>));
  library.impl("jit_csrmm", TORCH_FN(jit_csr<true>));
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { register_jit(library); }

SPIKEFORGE_KERNELS(FuncTorchBatched, library) { register_jit(library); }

SPIKEFORGE_KERNELS(Meta, library) { library.impl("jit_product", TORCH_FN(jit_kernel<jit_product_meta>)); }

}  // namespace

Distribution parse_distribution(const char* op, std::string_view name, const char* argument) {
  for (const auto each : {Distribution::constant, Distribution::uniform, Distribution::normal})
    if (name == name_of(each)) return each;
  TORCH_CHECK_VALUE(false, op, ": ", argument, R"( must be "constant", "uniform" or "normal", but is ")", name, "\"");
}

const char* jit_name(bool matrix) { return matrix ? "jit_csrmm" : "jit_csrmv"; }

void check_jit(const char* op, const JitCall& call) {
  const auto& [weights, x, options, draw] = call;
  check_dense_floating(op, "weights", weights);
  const std::int64_t count = numbers_of(draw.distribution);
  TORCH_CHECK_VALUE(weights.dim() == 1 && weights.sym_size(0) == count, op, ": weights must have shape [", count,
                    "] under the law \"", name_of(draw.distribution), "\", but has ", weights.sym_sizes());
  check_size(op, options.rows, options.cols);
  TORCH_CHECK_VALUE(draw.prob >= 0 && draw.prob <= 1, op, ": prob must be from 0 to 1, but is ", draw.prob);
  check_entries(op, "events", x, options);
  check_device({op, "weights", weights}, "events", x);
}

bool is_empty(const JitCall& call) {
  return call.draw.prob == 0 || call.options.rows == 0 || call.options.cols == 0 || call.x.numel() == 0;
}

RandomRows random_rows(const JitCall& call) {
  const Draw& draw = call.draw;
  const auto wanted = std::min(static_cast<double>(widest_piece), std::ceil(connections_a_piece / draw.prob));
  const auto width = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(wanted)));
  const std::int64_t cols = call.options.cols.expect_int();
  return {.seed = event::mixed(static_cast<std::uint64_t>(draw.seed)),
          .rows = call.options.rows.expect_int(),
          .cols = cols,
          .width = width,
          .pieces = (cols + width - 1) / width,
          .columns_a_bit = static_cast<float>(-std::log(2.0) / std::log1p(-draw.prob))};
}

event::KernelSpec gpu_jit(const JitCall& call, const RandomRows& matrix) {
  const Options& options = call.options;
  event::KernelSpec spec{.kernel = options.transpose ? event::Kernel::jit_scatter : event::Kernel::jit_gather,
                         .weight = dtype_of(call.weights.scalar_type()),
                         .entry = entry_type_of(call.x.scalar_type()),
                         .values = options.values,
                         .homogeneous = call.draw.distribution == Distribution::constant,
                         .sums = event::Sums::floats,
                         .transpose = options.transpose,
                         .distribution = call.draw.distribution};
  if (options.transpose) {
    spec.sums = event::sums_by_columns(options.values, spec.homogeneous, is_deterministic(options));
  } else {
    spec.lanes = static_cast<std::uint8_t>(
        std::bit_floor(static_cast<std::uint64_t>(std::clamp<std::int64_t>(matrix.pieces, 1, 32))));
    spec.columns = vectors_of(call.x, options.matrix).n == 1 ? 1 : 4;
  }
  return spec;
}

event::KernelSpec gpu_jit_finish(event::KernelSpec spec) {
  spec.kernel = event::Kernel::finish;
  if (spec.delays != event::Delays::none) spec.delays = event::Delays::one;  // any value: delays are not read
  spec.transpose = false;
  spec.distribution = {};
  return spec;
}

at::Tensor call_jit(const JitCall& call) {
  static const auto op = find_operator<decltype(jit_kernel<call_jit>)>("spikeforge::jit_product");
  const auto& [weights, x, o, draw] = call;
  return op.call(weights, x, o.rows, o.cols, draw.prob, draw.seed, name_of(draw.distribution), o.transpose, o.matrix,
                 name_of(o.values), o.deterministic);
}

namespace {

// ---- gradients ----

// Gradients of products with a drawn matrix. With respect to the entries: the product of the upstream gradient with the
// transposed matrix. With respect to the distribution's parameters, in which a weight is linear: products with the unit
// parameters (1, 0) and (0, 1). Both are the operator itself, so that second derivatives are correct too.
at::Tensor gradient_of_weights(const JitCall& call, const at::Tensor& grad) {
  return sums_of_units(call.draw, grad.to(state_type(call.weights.scalar_type())),
                       [&](const at::Tensor& unit) {
                         return call_jit({unit, call.x, call.options, call.draw});
                       })
      .to(call.weights.scalar_type());
}

struct JitRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const JitCall call{saved[0], saved[1], saved_options(ctx), saved_draw(ctx)};
    at::Tensor grad_weights, grad_x;
    if (ctx->needs_input_grad(0)) grad_weights = gradient_of_weights(call, grads[0]);
    if (ctx->needs_input_grad(1))
      grad_x = call_jit({call.weights, grads[0], transposed(call.options), call.draw}).to(call.x.scalar_type());
    return {grad_weights, grad_x};
  }
};

at::Tensor jit_product_autograd(const JitCall& call) {
  return differentiable<JitRule>(
      jit_name(call.options.matrix), {call.weights, call.x}, [&] { return call_jit(call); },
      [&](AutogradContext* ctx) {
        ctx->save_for_backward({call.weights, call.x});
        save_options(ctx, call.options);
        save_draw(ctx, call.draw);
      });
}

SPIKEFORGE_KERNELS(Autograd, library) { library.impl("jit_product", TORCH_FN(jit_kernel<jit_product_autograd>)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
