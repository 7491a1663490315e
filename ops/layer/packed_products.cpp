// torch's linear layers and convolutions of spikes, which save the spikes as bits for the backward pass.
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/common/packed_result.h"
#include "ops/common/recomputable.h"
#include "ops/common/rows_product.h"
#include "ops/common/spike_bits.h"
#include "ops/layer.h"
#include "ops/layer/lowering.h"
#include "ops/multistep/text_call.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace spikeforge::ops::layers {
namespace {

using autograd::AutogradContext;
using autograd::variable_list;
using MaybeTensor = std::optional<at::Tensor>;

SPIKEFORGE_SCHEMAS(library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? bias=None, *, int bits=1, bool recompute=False) -> Tensor");
  library.def(
      "convolution(Tensor x, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, "
      "int[1] dilation=1, int groups=1, *, int bits=1, bool recompute=False) -> Tensor");
}

struct Geometry {
  std::vector<c10::SymInt> stride, padding, dilation;
  c10::SymInt groups = 1;
};

// The saved form of x for the backward pass.
struct Keeping {
  std::int64_t bits = 1;   // per element of x; 0: x itself is saved
  bool recompute = false;  // the product is recomputed, so that its readers need not save it
};

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias, const Geometry& options) {
  const std::vector<c10::SymInt> zeros(options.stride.size(), 0);
  return at::convolution_symint(x, weight, bias, options.stride, options.padding, options.dilation,
                                /*transposed=*/false, zeros, options.groups);
}

// Saves the layout and the type of a tensor that is saved as bits.
void keep_form(AutogradContext* ctx, const at::Tensor& x, std::int64_t bits) {
  ctx->saved_data["sizes"] = x.sym_sizes().vec();
  ctx->saved_data["strides"] = x.sym_strides().vec();
  ctx->saved_data["type"] = static_cast<std::int64_t>(x.scalar_type());
  ctx->saved_data["bits"] = bits;
}

std::vector<c10::SymInt> sym_ints(AutogradContext* ctx, const char* name) {
  return ctx->saved_data.at(name).toSymIntVector();
}

// False while a graph is traced: tensors have no data then.
bool has_numbers(const at::Tensor& t) {
  return t.is_cpu() &&
         !t.key_set().has_any(c10::DispatchKeySet{c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
}

// Packs x. On a CPU, illegal values throw; on a GPU and in a compiled graph, they make the gradient NaN.
Packed pack(const char* op, const at::Tensor& x, std::int64_t bits) {
  Packed packed = autograd::PackedResult::of(x, bits);
  if (!packed.numbers.defined()) packed = call_pack(x, bits);
  TORCH_CHECK_VALUE(!has_numbers(packed.valid) || *packed.valid.const_data_ptr<bool>(), op, ": x must be ",
                    bits == 1 ? "0 or 1 everywhere, of which it keeps a bit each; pass bits=4 for counts up to 15"
                              : "a whole number from 0 to 15 everywhere, of which it keeps four bits each");
  return packed;
}

// The indices of a product's saved tensors. Bits have two tensors, x itself one.
enum Saved : std::uint8_t { saved_weight, saved_bias, saved_x, saved_valid };

// Returns x of the forward pass. Throws NotImplementedError if its derivative is required.
at::Tensor unpacked(AutogradContext* ctx, const char* op, const variable_list& saved) {
  if (ctx->saved_data.at("bits").toInt() == 0) return saved[saved_x];
  TORCH_CHECK_NOT_IMPLEMENTED(
      !at::GradMode::is_enabled(), op,
      ": its backward pass cannot be differentiated, because x was saved as bits; use torch's operator");
  return call_unpack({saved[saved_x], saved[saved_valid]}, sym_ints(ctx, "sizes"), sym_ints(ctx, "strides"),
                     static_cast<c10::ScalarType>(ctx->saved_data.at("type").toInt()),
                     ctx->saved_data.at("bits").toInt());
}

at::Tensor as(const at::Tensor& t, const at::Tensor& like) {
  return !t.defined() || t.scalar_type() == like.scalar_type() ? t : t.to(like.scalar_type());
}

// Sums over all dimensions except the last.
at::Tensor sum_of_rows(const at::Tensor& t) {
  if (t.dim() == 1) return t;
  std::vector<std::int64_t> dims(static_cast<std::size_t>(t.dim() - 1));
  std::iota(dims.begin(), dims.end(), 0);
  return t.sum(dims);
}

MaybeTensor bias_of(const variable_list& saved) {
  return saved[saved_bias].defined() ? MaybeTensor(saved[saved_bias]) : std::nullopt;
}

struct PackedLinearRule {
  static constexpr bool is_traceable = false;

  static at::Tensor again(AutogradContext* ctx) {
    const variable_list saved = ctx->get_saved_variables();
    return at::linear(unpacked(ctx, "linear", saved), saved[saved_weight], bias_of(saved));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &grad = grads[0], &weight = saved[saved_weight];
    variable_list list(ctx->saved_data.at("has_bias").toBool() ? 3 : 2);
    if (!grad.defined()) return list;
    if (ctx->needs_input_grad(0))
      list[0] = grad.matmul(as(weight, grad)).to(static_cast<c10::ScalarType>(ctx->saved_data.at("type").toInt()));
    if (ctx->needs_input_grad(1))
      list[1] = rows_product(grad, as(unpacked(ctx, "linear", saved), grad)).to(weight_type(ctx));
    if (list.size() > 2 && ctx->needs_input_grad(2)) list[2] = sum_of_rows(grad).to(weight_type(ctx));
    return list;
  }

  static c10::ScalarType weight_type(AutogradContext* ctx) {
    return static_cast<c10::ScalarType>(ctx->saved_data.at("weight_type").toInt());
  }
};

struct PackedConvolutionRule {
  static constexpr bool is_traceable = false;

  static at::Tensor again(AutogradContext* ctx) {
    const variable_list saved = ctx->get_saved_variables();
    return convolve(unpacked(ctx, "convolution", saved), saved[saved_weight], bias_of(saved), geometry_of(ctx));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &grad = grads[0], &weight = saved[saved_weight];
    const bool has_bias = ctx->saved_data.at("has_bias").toBool();
    variable_list list(has_bias ? 3 : 2);
    if (!grad.defined()) return list;
    const auto type = static_cast<c10::ScalarType>(ctx->saved_data.at("type").toInt());
    const std::array<bool, 3> wanted{ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                                     has_bias && ctx->needs_input_grad(2)};
    // The sizes of x are always read. Its values are only needed for the weight's gradient, and uninitialized
    // otherwise.
    const at::Tensor x = wanted[1] ? unpacked(ctx, "convolution", saved)
                                   : at::empty_strided_symint(sym_ints(ctx, "sizes"), sym_ints(ctx, "strides"),
                                                              grad.options().dtype(type));
    const Geometry options = geometry_of(ctx);
    const std::vector<c10::SymInt> zeros(options.stride.size(), 0);
    const c10::SymInt out = weight.sym_size(0);
    const auto [grad_x, grad_weight, grad_bias] = at::convolution_backward_symint(
        grad, as(x, grad), as(weight, grad),
        has_bias ? at::OptionalSymIntArrayRef(c10::SymIntArrayRef(&out, 1)) : std::nullopt, options.stride,
        options.padding, options.dilation, /*transposed=*/false, zeros, options.groups, wanted);
    if (wanted[0]) list[0] = grad_x.scalar_type() == type ? grad_x : grad_x.to(type);
    if (wanted[1]) list[1] = as(grad_weight, weight);
    if (wanted[2]) list[2] = as(grad_bias, weight);
    return list;
  }

  static void keep(AutogradContext* ctx, const Geometry& options) {
    ctx->saved_data["stride"] = options.stride;
    ctx->saved_data["padding"] = options.padding;
    ctx->saved_data["dilation"] = options.dilation;
    ctx->saved_data["groups"] = options.groups;
  }

 private:
  static Geometry geometry_of(AutogradContext* ctx) {
    return {sym_ints(ctx, "stride"), sym_ints(ctx, "padding"), sym_ints(ctx, "dilation"),
            ctx->saved_data.at("groups").toSymInt()};
  }
};

void check_tensors(const char* op, const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias) {
  TORCH_CHECK_TYPE(is_supported(x.scalar_type()) && x.layout() == c10::kStrided, op,
                   ": x must be dense, and float16, bfloat16, float32 or float64, but is ", x.scalar_type(), ", ",
                   x.layout());
  const Leader leader{op, "x", x};
  check_same_type(leader, "weight", weight);
  check_device(leader, "weight", weight);
  if (!bias.has_value() || !bias->defined()) return;
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->sym_size(0) == weight.sym_size(0), op, ": bias must have shape [",
                    weight.sym_size(0), "], one element per output of weight, but has ", bias->sym_sizes());
  check_same_type(leader, "bias", *bias);
  check_device(leader, "bias", *bias);
}

// Returns torch's product, recorded by Rule with x as bits if the weight needs a gradient. `keep` saves the other
// values for Rule. Transforms of torch.func, and forward mode, use torch's derivatives.
template <class Rule, class Product, class Keep>
at::Tensor packed_product(const char* op, const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias,
                          const Keeping& keeping, const Product& product, const Keep& keep) {
  if (keeping.bits != 0) check_bits(op, keeping.bits);
  const bool has_bias = bias.has_value() && bias->defined();
  variable_list inputs{x, weight};
  if (has_bias) inputs.push_back(*bias);
  const auto any = [&](auto&& is) { return std::any_of(inputs.begin(), inputs.end(), is); };
  if (any([](const at::Tensor& t) { return traced::is_wrapped(t); }) || any(autograd::has_tangent) ||
      !autograd::wants_gradient(weight))
    return product();
  return autograd::record<Rule, autograd::RecomputableNode<Rule>>(inputs, [&](AutogradContext* ctx) {
    const at::Tensor in_order = keeping.bits == 0 ? x : without_gaps(x);
    ctx->set_materialize_grads(false);
    // A linear layer without a gradient of x does not need the weight, which may then change.
    const bool reads_weight = weight.dim() > 2 || autograd::wants_gradient(x) || keeping.recompute;
    variable_list saved{reads_weight ? weight : at::Tensor(), keeping.recompute && has_bias ? *bias : at::Tensor()};
    if (keeping.bits == 0) {
      saved.push_back(x);
    } else {
      Packed packed = pack(op, in_order, keeping.bits);
      saved.insert(saved.end(), {std::move(packed.numbers), std::move(packed.valid)});
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["weight_type"] = static_cast<std::int64_t>(weight.scalar_type());
    ctx->saved_data["has_bias"] = has_bias;
    ctx->saved_data["recompute"] = keeping.recompute;
    keep_form(ctx, in_order, keeping.bits);
    keep(ctx);
    return variable_list{product()};
  })[0];
}

void check_linear(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias) {
  TORCH_CHECK_VALUE(weight.dim() == 2, "linear: weight must have shape [out, in], but has ", weight.sym_sizes());
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == weight.sym_size(1), "linear: x must have shape [..., ",
                    weight.sym_size(1), "] for a weight [out, in] of shape ", weight.sym_sizes(), ", but has shape ",
                    x.sym_sizes());
  check_tensors("linear", x, weight, bias);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias, std::int64_t /*bits*/,
                  bool /*recompute*/) {
  check_linear(x, weight, bias);
  return at::linear(x, weight, bias);
}

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias, std::int64_t bits,
                           bool recompute) {
  check_linear(x, weight, bias);
  return packed_product<PackedLinearRule>(
      "linear", x, weight, bias, {bits, recompute}, [&] { return at::linear(x, weight, bias); },
      [](AutogradContext*) {});
}

// Expands a list to one element for each dimension of space.
std::vector<c10::SymInt> expanded(const char* name, at::IntArrayRef given, std::size_t dims, std::int64_t least) {
  TORCH_CHECK_VALUE(given.size() == 1 || given.size() == dims, "convolution: ", name, " must have one entry, or ", dims,
                    ", but has ", given.size());
  for (const std::int64_t n : given)
    TORCH_CHECK_VALUE(n >= least, "convolution: ", name, " must not be below ", least, ", but is ", given);
  std::vector<c10::SymInt> all(dims, given[0]);
  if (given.size() == dims) std::copy(given.begin(), given.end(), all.begin());
  return all;
}

// Throws TypeError and ValueError for tensors and scalars that are inconsistent.
Geometry geometry_of(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups) {
  TORCH_CHECK_VALUE(
      weight.dim() >= 3 && weight.dim() <= 5,
      "convolution: weight must have shape [out, in / groups, *kernel] with 1 to 3 dimensions of space, but has ",
      weight.sym_sizes());
  TORCH_CHECK_VALUE(x.dim() == weight.dim(), "convolution: x must have ", weight.dim(),
                    " dimensions, [N, in, *space], for a weight of shape ", weight.sym_sizes(), ", but has shape ",
                    x.sym_sizes());
  TORCH_CHECK_VALUE(groups >= 1 && weight.sym_size(0) % groups == 0,
                    "convolution: groups must divide the outputs of weight, ", weight.sym_size(0), ", but is ", groups);
  TORCH_CHECK_VALUE(x.sym_size(1) == weight.sym_size(1) * groups, "convolution: x must have ",
                    weight.sym_size(1) * groups, " channels, in dimension 1, for a weight of shape ",
                    weight.sym_sizes(), groups > 1 ? c10::str(" and ", groups, " groups") : std::string(),
                    ", but has shape ", x.sym_sizes());
  check_tensors("convolution", x, weight, bias);
  const auto dims = static_cast<std::size_t>(weight.dim() - 2);
  Geometry geometry{expanded("stride", stride, dims, 1), expanded("padding", padding, dims, 0),
                    expanded("dilation", dilation, dims, 1), groups};
  for (std::size_t d = 0; d < dims; ++d) {
    const auto of = static_cast<std::int64_t>(d) + 2;
    const c10::SymInt padded = x.sym_size(of) + geometry.padding[d] * 2;
    const c10::SymInt window = geometry.dilation[d] * (weight.sym_size(of) - 1) + 1;
    TORCH_CHECK_VALUE(window <= padded, "convolution: the kernel must not be larger than x, but takes ", window,
                      " places of ", padded, " in dimension ", of, " of x, of shape ", x.sym_sizes(),
                      ", with its padding");
  }
  return geometry;
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups, std::int64_t /*bits*/,
                       bool /*recompute*/) {
  return convolve(x, weight, bias, geometry_of(x, weight, bias, stride, padding, dilation, groups));
}

at::Tensor convolution_autograd(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias,
                                at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                std::int64_t groups, std::int64_t bits, bool recompute) {
  const Geometry options = geometry_of(x, weight, bias, stride, padding, dilation, groups);
  return packed_product<PackedConvolutionRule>(
      "convolution", x, weight, bias, {bits, recompute}, [&] { return convolve(x, weight, bias, options); },
      [&](AutogradContext* ctx) { PackedConvolutionRule::keep(ctx, options); });
}

// ---- autocast: arguments are cast before autograd sees them, as torch's own products do ----

const auto& linear_op() {
  static const auto handle = find_operator<decltype(linear)>("spikeforge::linear");
  return handle;
}
const auto& convolution_op() {
  static const auto handle = find_operator<decltype(convolution)>("spikeforge::convolution");
  return handle;
}

at::Tensor linear_autocast(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias, std::int64_t bits,
                           bool recompute) {
  const Lowering lower(x);
  return linear_op().call(lower(x), lower(weight), lower(bias), bits, recompute);
}

at::Tensor convolution_autocast(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias,
                                at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                std::int64_t groups, std::int64_t bits, bool recompute) {
  const Lowering lower(x);
  return convolution_op().call(lower(x), lower(weight), lower(bias), stride, padding, dilation, groups, bits,
                               recompute);
}

template <auto linear_kernel, auto convolution_kernel> void register_products(torch::Library& library) {
  library.impl("linear", TORCH_FN(linear_kernel));
  library.impl("convolution", TORCH_FN(convolution_kernel));
}

SPIKEFORGE_KERNELS(AutocastCPU, library) { register_products<linear_autocast, convolution_autocast>(library); }
SPIKEFORGE_KERNELS(AutocastCUDA, library) { register_products<linear_autocast, convolution_autocast>(library); }
SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { register_products<linear, convolution>(library); }
SPIKEFORGE_KERNELS(FuncTorchBatched, library) { register_products<linear, convolution>(library); }
SPIKEFORGE_KERNELS(Autograd, library) { register_products<linear_autograd, convolution_autograd>(library); }

}  // namespace
}  // namespace spikeforge::ops::layers

namespace spikeforge {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                  std::int64_t bits, bool recompute) {
  return ops::layers::linear_op().call(x, weight, bias, bits, recompute);
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       const ConvolutionOptions& options) {
  return ops::layers::convolution_op().call(x, weight, bias, options.stride, options.padding, options.dilation,
                                            options.groups, options.bits, options.recompute);
}

}  // namespace spikeforge
