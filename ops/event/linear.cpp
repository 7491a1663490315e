// event_linear: events [..., in] times weight [in, out], plus bias [out]: the sum of the rows of active inputs, [...,
// out] in the weight's type. Rows of other inputs are not read into it.
//
// An entry x of `events` is an event if it is true, or x > 0; NaN is not an event. An event counts 1, or with `graded`
// x. int32 events are the result of pack_events, [..., ceil(in / 32)]. Half types are summed in float32 and rounded
// once; the order of a sum is fixed. The gradient of events is grad weight^T, straight-through; that of weight is the
// values of the inputs times the upstream gradient.
#include "ops/event/linear.h"
#include "csrc/cpu/event/kernels.h"
#include "csrc/kernels/event/note.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/differentiation.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <algorithm>
#include <utility>
#include <vector>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "csrc/jit/spec_table.h"
#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAGuard.h>
#endif

namespace spikeforge::ops::sparse {
namespace {

constexpr const char* op = "event_linear";

// True if x is packed: event_linear takes bool or floating point [..., in], or the result of pack_events for it, int32.
bool is_packed(const at::Tensor& x) { return x.scalar_type() == c10::ScalarType::Int; }

// Runs all checks of the call. Kernels have none.
void check_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, bool graded) {
  const auto type = x.scalar_type();
  TORCH_CHECK_TYPE(
      x.layout() == c10::kStrided && (type == c10::ScalarType::Bool || is_packed(x) || is_supported(type)), op,
      ": events must be a dense bool, float16, bfloat16, float32 or float64 tensor, or int32 bits of pack_events, but "
      "is ",
      x.layout(), " ", type);
  TORCH_CHECK_VALUE(!is_packed(x) || !graded, op, ": bits have no value that `graded` could use");
  check_dense_floating(op, "weight", weight);
  TORCH_CHECK_VALUE(weight.dim() == 2, op, ": weight must have shape [in, out], but has ", weight.sym_sizes());
  const c10::SymInt in = weight.sym_size(0);
  if (is_packed(x)) {
    TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == (in + 31) / 32, op,
                      ": events, as bits, must have shape [..., ceil(in / 32)] with in = ", in,
                      ", the rows of weight, ", "but has ", x.sym_sizes());
  } else {
    TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == in, op, ": events must have shape [..., in] with in = ", in,
                      ", the rows of weight, but has ", x.sym_sizes());
  }
  const Leader leader{op, "events", x};
  check_device(leader, "weight", weight);
  if (!bias.has_value()) return;
  TORCH_CHECK_TYPE(bias->scalar_type() == weight.scalar_type(), op, ": bias must be ", weight.scalar_type(),
                   ", as weight, but is ", bias->scalar_type());
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->sym_size(0) == weight.sym_size(1), op, ": bias must have shape [out] = [",
                    weight.sym_size(1), "], but has ", bias->sym_sizes());
  check_device(leader, "bias", *bias);
}

// Returns the GPU kernel.
event::KernelSpec gpu_linear(const at::Tensor& x, const at::Tensor& weight, bool graded) {
  return {.kernel = event::Kernel::linear,
          .weight = dtype_of(weight.scalar_type()),
          .entry = is_packed(x) ? event::EntryType::boolean : entry_type_of(x.scalar_type()),
          .values = graded ? Values::graded : Values::event,
          .packed = is_packed(x)};
}

// [..., out]
c10::SymDimVector linear_sizes(const at::Tensor& x, const at::Tensor& weight) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  sizes.back() = weight.sym_size(1);
  return sizes;
}

// Returns events^T grad, summed over all leading dimensions.
at::Tensor event_linear_weight_grad(const at::Tensor& x, const at::Tensor& grad, c10::SymInt in, bool graded) {
  const char* const name = "event_linear_weight_grad";
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == (is_packed(x) ? (in + 31) / 32 : in), name,
                    ": events must have shape [..., in] with in = ", in,
                    ", or [..., (in + 31) / 32] if packed, but has ", x.sym_sizes());
  TORCH_CHECK_VALUE(
      grad.dim() == x.dim() && grad.sym_sizes().slice(0, grad.dim() - 1) == x.sym_sizes().slice(0, x.dim() - 1), name,
      ": grad must have the leading dimensions of events, ", x.sym_sizes(), ", but has ", grad.sym_sizes());
  const at::Tensor active = is_packed(x) ? unpack(x, in) : x.gt(0);
  const auto type = grad.scalar_type();
  const at::Tensor counted = graded ? at::where(active, x.to(type), at::zeros({}, grad.options())) : active.to(type);
  c10::SymInt vectors = 1;
  for (std::int64_t d = 0; d < x.dim() - 1; ++d) vectors *= x.sym_size(d);
  return counted.reshape_symint({vectors, in}).t().matmul(grad.reshape_symint({vectors, grad.sym_size(-1)}));
}

at::Tensor event_linear_meta(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             bool graded) {
  check_linear(x, weight, bias, graded);
  return at::empty_symint(linear_sizes(x, weight), weight.options());
}

SPIKEFORGE_SCHEMAS(library) {
  library.def("event_linear(Tensor events, Tensor weight, Tensor? bias=None, *, bool graded=False) -> Tensor");
  library.def("event_linear_weight_grad(Tensor events, Tensor grad, SymInt in_features, bool graded) -> Tensor");
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("event_linear_weight_grad", TORCH_FN(event_linear_weight_grad));
}

SPIKEFORGE_KERNELS(Meta, library) { library.impl("event_linear", TORCH_FN(event_linear_meta)); }

}  // namespace

at::Tensor call_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       bool graded) {
  static const auto handle = find_operator<decltype(call_linear)>("spikeforge::event_linear");
  return handle.call(x, weight, bias, graded);
}

at::Tensor call_linear_weight_grad(const at::Tensor& x, const at::Tensor& grad, c10::SymInt in, bool graded) {
  static const auto handle = find_operator<decltype(call_linear_weight_grad)>("spikeforge::event_linear_weight_grad");
  return handle.call(x, grad, std::move(in), graded);
}

namespace {

// ---- on the CPU: every thread adds up the rows of active inputs over some columns of some vectors ----

constexpr std::int64_t least_weights = 1 << 15;  // the minimum number of weights per thread
constexpr std::int64_t columns_at_once = 512;

std::vector<std::int64_t> active_inputs(const bool* x, std::int64_t in) {
  std::vector<std::int64_t> inputs;
  for (std::int64_t i = 0; i < in; ++i)
    if (x[i]) inputs.push_back(i);
  return inputs;
}

at::Tensor event_linear_cpu(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            bool graded) {
  check_linear(x, weight, bias, graded);
  at::Tensor y = at::empty(C10_AS_INTARRAYREF_SLOW(linear_sizes(x, weight)), weight.options());
  const std::int64_t in = weight.size(0);
  const std::int64_t out = weight.size(1);
  if (y.numel() == 0) return y;
  event::note_kernels([&](const jit::Device&) { return std::vector{gpu_linear(x, weight, graded)}; });
  const std::int64_t batches = y.numel() / out;
  const auto type = state_type(weight.scalar_type());
  const at::Tensor dense = weight.contiguous();
  const at::Tensor active = (is_packed(x) ? unpack(x, in) : x.gt(0)).contiguous();
  const at::Tensor values = graded ? x.to(type).contiguous() : at::Tensor();
  const at::Tensor offset = bias.has_value() ? bias->to(type).contiguous() : at::Tensor();

  std::vector<std::vector<std::int64_t>> of_vectors;
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    of_vectors.push_back(active_inputs(active.const_data_ptr<bool>() + b * in, in));
    rows += static_cast<std::int64_t>(of_vectors.back().size());
  }
  const std::int64_t tiles = (out + columns_at_once - 1) / columns_at_once;
  const std::int64_t grain = std::max<std::int64_t>(1, least_weights * batches * tiles / ((rows + batches) * out));
  auto* const to = static_cast<char*>(y.mutable_data_ptr());
  at::parallel_for(0, batches * tiles, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t item = first; item < last; ++item) {
      const std::int64_t b = item / tiles;
      const std::int64_t begin = item % tiles * columns_at_once;
      const auto& inputs = of_vectors[static_cast<std::size_t>(b)];
      cpu::event_kernels().linear({.type = dtype_of(weight.scalar_type()),
                                   .weight = dense.const_data_ptr(),
                                   .out = out,
                                   .inputs = inputs.data(),
                                   .count = static_cast<std::int64_t>(inputs.size()),
                                   .values = graded ? static_cast<const char*>(values.const_data_ptr()) +
                                                          b * in * static_cast<std::int64_t>(values.element_size())
                                                    : nullptr,
                                   .bias = offset.defined() ? offset.const_data_ptr() : nullptr,
                                   .begin = begin,
                                   .end = std::min(out, begin + columns_at_once),
                                   .y = to + b * out * static_cast<std::int64_t>(y.element_size())});
    }
  });
  return y;
}

SPIKEFORGE_KERNELS(CPU, library) { library.impl("event_linear", TORCH_FN(event_linear_cpu)); }

#if defined(SPIKEFORGE_WITH_CUDA)
// ---- on a GPU ----

constexpr std::int64_t linear_block = 256;
constexpr std::int64_t most_grid_z = 65535;
constexpr std::int64_t linear_blocks_a_multiprocessor = 4;  // the target number of blocks if there are few columns

at::Tensor event_linear_cuda(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             bool graded) {
  check_linear(x, weight, bias, graded);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  at::Tensor y = at::empty(C10_AS_INTARRAYREF_SLOW(linear_sizes(x, weight)), weight.options());
  if (y.numel() == 0) return y;
  const at::Tensor dense_x = x.contiguous();
  const at::Tensor dense_weight = weight.contiguous();
  const at::Tensor dense_bias = bias.has_value() ? bias->contiguous() : at::Tensor();
  const std::int64_t in = weight.size(0);
  const std::int64_t out = weight.size(1);
  const std::int64_t batches = y.numel() / out;

  const jit::Device& device = gpu_of(x);
  const event::KernelSpec spec = gpu_linear(x, weight, graded);
  const std::int64_t tiles = (out + linear_block - 1) / linear_block;
  const std::int64_t pieces = std::max<std::int64_t>(1, (in + event::inputs_at_once - 1) / event::inputs_at_once);
  const std::int64_t splits =
      std::clamp<std::int64_t>(linear_blocks_a_multiprocessor * device.multiprocessors / (tiles * batches), 1, pieces);
  const at::Tensor parts =
      splits > 1 ? at::empty({splits, batches, out}, weight.options().dtype(state_type(weight.scalar_type())))
                 : at::Tensor();
  event::LinearArguments args{.x = dense_x.const_data_ptr(),
                              .weight = dense_weight.const_data_ptr(),
                              .bias = dense_bias.defined() ? dense_bias.const_data_ptr() : nullptr,
                              .y = y.mutable_data_ptr(),
                              .parts = parts.defined() ? parts.mutable_data_ptr() : nullptr,
                              .in = in,
                              .out = out,
                              .words = (in + 31) / 32,
                              .batches = batches,
                              .first_batch = 0};
  const jit::LoadedKernel& kernel = jit::SpecTable<event::KernelSpec>::of(device).get(spec, device);
  for (; args.first_batch < batches; args.first_batch += most_grid_z)
    kernel.launch({static_cast<unsigned>(tiles), static_cast<unsigned>(splits),
                   static_cast<unsigned>(std::min<std::int64_t>(most_grid_z, batches - args.first_batch))},
                  linear_block, 0, stream_of(x), &args, sizeof args);
  if (!parts.defined()) return y;
  at::Tensor sum = parts.sum(0);
  if (dense_bias.defined()) sum = sum.add(dense_bias);
  return sum.to(weight.scalar_type()).view(y.sizes());
}

SPIKEFORGE_KERNELS(CUDA, library) { library.impl("event_linear", TORCH_FN(event_linear_cuda)); }
#endif

// ---- gradients ----

struct LinearRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& grad = grads[0];
    const bool has_bias = ctx->saved_data.at("has_bias").toBool();
    at::Tensor grad_x, grad_weight, grad_bias;
    if (ctx->needs_input_grad(0)) grad_x = grad.matmul(weight.t()).to(x.scalar_type());
    if (ctx->needs_input_grad(1))
      grad_weight = call_linear_weight_grad(x, grad, weight.sym_size(0), ctx->saved_data.at("graded").toBool());
    if (has_bias && ctx->needs_input_grad(2)) grad_bias = grad.sum_to_size_symint({grad.sym_size(-1)});
    return {grad_x, grad_weight, grad_bias};
  }
};

at::Tensor event_linear_autograd(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                 bool graded) {
  const bool has_bias = bias.has_value() && bias->defined();
  TORCH_CHECK_VALUE(!has_bias || bias->dim() == 1, "event_linear: bias must have shape [out], but has ",
                    bias->sym_sizes());
  variable_list inputs{x, weight};
  if (has_bias) inputs.push_back(*bias);
  return differentiable<LinearRule>(
      "event_linear", inputs, [&] { return call_linear(x, weight, bias, graded); },
      [&](AutogradContext* ctx) {
        ctx->save_for_backward({x, weight});
        ctx->saved_data["graded"] = graded;
        ctx->saved_data["has_bias"] = has_bias;
      });
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("event_linear", TORCH_FN(event_linear_autograd));
  library.impl("event_linear_weight_grad", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops::sparse
