#include "ops/loihi/connections.h"
#include "ops/common/checks.h"
#include "ops/common/layout.h"
#include "ops/common/library.h"
#include "ops/loihi.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>

namespace spikeforge {
namespace ops {

void check_number(const char* op, const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  TORCH_CHECK_VALUE(least <= value && value <= most, op, ": ", name, " must be in [", least, ", ", most, "], but is ",
                    value);
}

namespace {

// Returns the name of a type in Python.
std::string python_name(c10::ScalarType type) {
  switch (type) {
    case at::kInt: return "int32";
    case at::kLong: return "int64";
    case at::kHalf: return "float16";
    case at::kBFloat16: return "bfloat16";
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    default: return c10::toString(type);
  }
}

}  // namespace

void check_integers(const char* op, const char* name, const at::Tensor& t, c10::ScalarType type, const at::Tensor& x) {
  TORCH_CHECK_TYPE(t.scalar_type() == type, op, ": ", name, " must be ", type, ", but is ", t.scalar_type(), "; pass ",
                   name, ".to(torch.", python_name(type), ")");
  check_dense(op, name, t);
  check_device({op, "x", x}, name, t);
}

void check_elements(const char* op, const char* name, const at::Tensor& t, std::int64_t least, std::int64_t most) {
  if (!t.is_cpu() || at::isTensorSubclassLike(t) || t.numel() == 0) return;
  const auto [low, high] = at::aminmax(t.detach());
  const auto lowest = low.item<double>(), highest = high.item<double>();
  if (static_cast<double>(least) <= lowest && highest <= static_cast<double>(most)) return;
  // Values are printed with the fewest digits, and short integers without an exponent.
  C10_THROW_ERROR(ValueError, fmt::format("{}: {} must be in [{}, {}], but has values from {} to {}", op, name, least,
                                          most, lowest, highest));
}

void check_whole(const char* op, const char* name, const at::Tensor& t) {
  if (!t.is_cpu() || at::isTensorSubclassLike(t) || !at::isFloatingType(t.scalar_type())) return;
  const at::Tensor values = t.detach();
  TORCH_CHECK_VALUE(values.eq(values.trunc()).all().item<bool>(), op, ": ", name,
                    " must hold whole numbers, but has others",
                    std::string_view(name) == "weight" || std::string_view(name) == "values"
                        ? "; loihi_fake_quantize makes them of weights"
                        : "");
}

at::Tensor straight_through(const at::Tensor& value, const at::Tensor& source) {
  return value.add(source.sub(source.detach()));
}

void check_shift(const char* op, std::int64_t weight_exp, std::int64_t bits) {
  check_number(op, "weight_exp", weight_exp, least_weight_exp, most_weight_exp);
  check_number(op, "bits", bits, 1, 32);
}

at::Tensor shifted_sums(const at::Tensor& sums, std::int64_t weight_exp, std::int64_t bits) {
  at::Tensor result = sums;
  if (weight_exp > 0) result = result.bitwise_left_shift(weight_exp);
  if (weight_exp < 0) result = result.bitwise_right_shift(-weight_exp);
  // Shifts left to the top of an int32 and back, to extend the sign.
  if (bits < 32) result = result.bitwise_left_shift(32 - bits).bitwise_right_shift(32 - bits);
  return result;
}

namespace {

using at::Tensor;
using YAndBuffer = std::tuple<Tensor, Tensor>;
using Product = Tensor(const Tensor&, const Tensor&, std::int64_t);
using FloatProduct = Tensor(const Tensor&, const Tensor&, std::int64_t, std::int64_t, std::int64_t);
using SparseProduct = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t);
using FloatSparseProduct = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                                  std::int64_t, std::int64_t);
using Dense = YAndBuffer(const Tensor&, const Tensor&, const OptionalTensor&, std::int64_t, std::int64_t, std::int64_t);
using Sparse = YAndBuffer(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                          std::int64_t, std::int64_t, std::int64_t);
using DelayDense = YAndBuffer(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, std::int64_t,
                              std::int64_t, std::int64_t);
using Conv = YAndBuffer(const Tensor&, const Tensor&, const OptionalTensor&, at::IntArrayRef, at::IntArrayRef,
                        at::IntArrayRef, std::int64_t, std::int64_t, std::int64_t, std::int64_t);
using Shape = Sizes<c10::SymInt>;

// The widths of sums: int32, and that of the chip, at which a convolution wraps around.
constexpr std::int64_t full_width = 32, chip_width = 24;
constexpr std::int64_t most_sum = std::int64_t{1} << 31;  // the limit, rounded to float32

// A call of a connection, for its checks, shapes and products. All tensors are on x's device, and int32 like x, or of
// its floating-point type for gradients.
class Connection {
 public:
  // `dims` is the number of dimensions of x after the batch, and `described` their names.
  Connection(const char* op, const Tensor& x, std::int64_t weight_exp, std::int64_t num_message_bits,
             std::int64_t dims = 1, const char* described = "in", std::int64_t bits = full_width)
      : op_(op),
        x_(x),
        weight_exp_(weight_exp),
        num_message_bits_(num_message_bits),
        dims_(dims),
        bits_(bits),
        type_(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble ? x.scalar_type() : at::kInt) {
    TORCH_CHECK_TYPE(x.scalar_type() == type_ || !at::isFloatingType(x.scalar_type()), op,
                     ": x must be int32, or float32 or float64 to be differentiated, but is ",
                     python_name(x.scalar_type()));
    check_type("x", x, type_);
    TORCH_CHECK_VALUE(x.dim() >= 1 + dims, op, ": x must have shape [T, *batch, ", described, "], but has ",
                      x.sym_sizes());
    check_shift(op, weight_exp, bits_);
    check_number(op, "num_message_bits", num_message_bits, 0, 32);
  }

  void check_type(const char* name, const Tensor& t, c10::ScalarType type) const {
    check_integers(op_, name, t, type, x_);
  }

  void check_weight(const char* name, const Tensor& weight) const {
    check_type(name, weight, type_);
    check_whole(op_, name, weight);
    check_elements(op_, name, weight, least_weight, most_weight);
  }

  // [out, in]
  void check_matrix(const char* name, const Tensor& matrix) const {
    TORCH_CHECK_VALUE(matrix.dim() == 2 && matrix.sym_size(1) == x_.sym_size(-1), op_, ": ", name,
                      " must have shape [out, in] with in = ", x_.sym_size(-1), ", the last dimension of x, but has ",
                      matrix.sym_sizes());
  }

  // Returns x as [rows, ...].
  Tensor rows() const {
    Shape shape{1};
    for (std::int64_t d = 0; d < x_.dim() - dims_; ++d) shape[0] = shape[0] * x_.sym_size(d);
    for (std::int64_t d = x_.dim() - dims_; d < x_.dim(); ++d) shape.push_back(x_.sym_size(d));
    return x_.reshape_symint(shape);
  }

  // Returns the sums [rows, out] of [rows, in] and [out, in], shifted and wrapped to their width.
  Tensor product(const Tensor& rows, const Tensor& weight) const {
    static const auto integers = find_operator<Product>("spikeforge::loihi_product");
    static const auto floats = find_operator<FloatProduct>("spikeforge::loihi_float_product");
    if (type_ != at::kInt) return floats.call(rows, weight, num_message_bits_, weight_exp_, bits_);
    return shifted_sums(integers.call(rows, weight, num_message_bits_), weight_exp_, bits_);
  }
  Tensor product(const Tensor& rows, const Tensor& crow_indices, const Tensor& col_indices,
                 const Tensor& values) const {
    static const auto integers = find_operator<SparseProduct>("spikeforge::loihi_sparse_product");
    static const auto floats = find_operator<FloatSparseProduct>("spikeforge::loihi_float_sparse_product");
    if (type_ != at::kInt)
      return floats.call(rows, crow_indices, col_indices, values, num_message_bits_, weight_exp_, bits_);
    return shifted_sums(integers.call(rows, crow_indices, col_indices, values, num_message_bits_), weight_exp_, bits_);
  }

  // Reshapes sums [rows, ...] to [T, *batch, ...].
  Tensor steps(const Tensor& sums) const {
    return sums.reshape_symint(sizes(x_.sym_size(0), sums.sym_sizes().slice(1)));
  }

  // [first, *batch, *out]
  Shape sizes(const c10::SymInt& first, c10::SymIntArrayRef out) const {
    Shape result{first};
    for (std::int64_t d = 1; d < x_.dim() - dims_; ++d) result.push_back(x_.sym_size(d));
    result.append(out.begin(), out.end());
    return result;
  }

  Tensor buffer_or_zeros(const OptionalTensor& buffer, std::int64_t slots, c10::SymIntArrayRef out) const {
    const Shape expected = sizes(slots, out);
    if (!buffer.has_value() || !buffer->defined()) return at::zeros_symint(expected, x_.options());
    TORCH_CHECK_VALUE(buffer->sym_sizes() == c10::SymIntArrayRef(expected), op_, ": buffer must have shape ",
                      c10::SymIntArrayRef(expected), ", [delay, *batch, out], but has ", buffer->sym_sizes());
    check_type("buffer", *buffer, type_);
    if (type_ != at::kInt) {
      check_whole(op_, "buffer", *buffer);
      check_elements(op_, "buffer", *buffer, -most_sum, most_sum);
    }
    return *buffer;
  }

  // Returns the values that arrive in these steps and in later steps, if every message is delayed by `delay` steps.
  YAndBuffer delayed(const Tensor& sent, const OptionalTensor& buffer, std::int64_t delay) const {
    check_number(op_, "delay", delay, 0, most_delay + 1);
    const Tensor before = buffer_or_zeros(buffer, delay, sent.sym_sizes().slice(x_.dim() - dims_));
    if (delay == 0) return {sent, before.clone()};
    const c10::SymInt steps = x_.sym_size(0);
    const c10::SymInt left = (steps - delay).max(0);  // steps of `sent` that arrive in this call
    return {at::cat({before.slice_symint(0, 0, steps), sent.slice_symint(0, 0, left)}),
            at::cat({before.slice_symint(0, steps), sent.slice_symint(0, left)})};
  }

 private:
  const char* op_;
  const Tensor& x_;
  std::int64_t weight_exp_, num_message_bits_, dims_, bits_;
  c10::ScalarType type_;
};

YAndBuffer dense(const Tensor& x, const Tensor& weight, const OptionalTensor& buffer, std::int64_t delay,
                 std::int64_t weight_exp, std::int64_t num_message_bits) {
  const Connection connection("loihi_dense", x, weight_exp, num_message_bits);
  connection.check_matrix("weight", weight);
  connection.check_weight("weight", weight);
  return connection.delayed(connection.steps(connection.product(connection.rows(), weight)), buffer, delay);
}

YAndBuffer sparse(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices, const Tensor& values,
                  const OptionalTensor& buffer, std::int64_t delay, std::int64_t weight_exp,
                  std::int64_t num_message_bits) {
  constexpr const char* op = "loihi_sparse";
  const Connection connection(op, x, weight_exp, num_message_bits);
  connection.check_type("crow_indices", crow_indices, at::kLong);
  connection.check_type("col_indices", col_indices, at::kLong);
  connection.check_weight("values", values);
  TORCH_CHECK_VALUE(crow_indices.dim() == 1 && crow_indices.sym_size(0) >= 1, op,
                    ": crow_indices must have shape [out + 1], but has ", crow_indices.sym_sizes());
  TORCH_CHECK_VALUE(values.dim() == 1 && col_indices.sym_sizes() == values.sym_sizes(), op,
                    ": col_indices and values must have the same shape [nnz], but have ", col_indices.sym_sizes(),
                    " and ", values.sym_sizes());
  const Tensor sums = connection.product(connection.rows(), crow_indices, col_indices, values);
  return connection.delayed(connection.steps(sums), buffer, delay);
}

YAndBuffer delay_dense(const Tensor& x, const Tensor& weight, const Tensor& delays, const OptionalTensor& buffer,
                       std::int64_t max_delay, std::int64_t weight_exp, std::int64_t num_message_bits) {
  constexpr const char* op = "loihi_delay_dense";
  const Connection connection(op, x, weight_exp, num_message_bits);
  connection.check_matrix("weight", weight);
  connection.check_weight("weight", weight);
  check_number(op, "max_delay", max_delay, 0, most_delay);
  TORCH_CHECK_VALUE(delays.sym_sizes() == weight.sym_sizes(), op, ": delays must have shape ", weight.sym_sizes(),
                    ", that of weight, but has ", delays.sym_sizes());
  connection.check_type("delays", delays, at::kInt);
  check_elements(op, "delays", delays, 0, max_delay);

  const c10::SymInt steps = x.sym_size(0), out = weight.sym_size(0);
  const std::int64_t slots = max_delay + 1;
  const Tensor rows = connection.rows();
  // [slots + T, *batch, out]: the values that arrive in these steps, and in the `slots` steps after them.
  Tensor arriving = at::cat(
      {connection.buffer_or_zeros(buffer, slots, out), at::zeros_symint(connection.sizes(steps, out), x.options())});
  for (std::int64_t delay = 0; delay <= max_delay; ++delay) {
    const Tensor sums = connection.steps(connection.product(rows, weight.mul(delays.eq(delay))));
    const Tensor earlier = at::zeros_symint(connection.sizes(1 + delay, out), x.options()),
                 later = at::zeros_symint(connection.sizes(max_delay - delay, out), x.options());
    arriving = arriving.add(at::cat({earlier, sums, later}));
  }
  return {arriving.narrow_symint(0, 0, steps).clone(), arriving.narrow_symint(0, steps, slots).clone()};
}

constexpr std::int64_t most_number = std::numeric_limits<std::int32_t>::max();

// Returns one number for each of two dimensions, from two or one for both.
std::array<std::int64_t, 2> pair(const char* op, const char* name, at::IntArrayRef given, std::int64_t least) {
  TORCH_CHECK_VALUE(given.size() == 1 || given.size() == 2, op, ": ", name, " must be 1 or 2 numbers, but is ", given);
  for (const std::int64_t number : given) {
    TORCH_CHECK_VALUE(number >= least, op, ": ", name, " must be ", least, " or more, but is ", given);
    TORCH_CHECK_VALUE(number <= most_number, op, ": ", name, " must be ", most_number, " or less, but is ", given);
  }
  return {given.front(), given.back()};
}

YAndBuffer conv(const Tensor& x, const Tensor& weight, const OptionalTensor& buffer, at::IntArrayRef stride,
                at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups, std::int64_t delay,
                std::int64_t weight_exp, std::int64_t num_message_bits) {
  constexpr const char* op = "loihi_conv";
  const Connection connection(op, x, weight_exp, num_message_bits, /*dims=*/3, "channels, height, width", chip_width);
  connection.check_weight("weight", weight);
  const auto steps = pair(op, "stride", stride, 1), around = pair(op, "padding", padding, 0),
             apart = pair(op, "dilation", dilation, 1);
  check_number(op, "groups", groups, 1, most_number);
  TORCH_CHECK_VALUE(
      weight.dim() == 4 && weight.sym_size(1) * groups == x.sym_size(-3) && weight.sym_size(0) % groups == 0, op,
      ": weight must have shape [out, in / groups, height, width] with in = ", x.sym_size(-3),
      " and out a multiple of ", groups, " groups, but has ", weight.sym_sizes());
  Tensor patches = at::constant_pad_nd(connection.rows(), {around[1], around[1], around[0], around[0]});
  for (std::int64_t d = 0; d < 2; ++d) {
    const c10::SymInt window = (weight.sym_size(2 + d) - 1) * apart[d] + 1;
    TORCH_CHECK_VALUE(weight.sym_size(2 + d) >= 1 && window <= patches.sym_size(2 + d), op,
                      ": the kernel must be no larger than the padded input, but spans ", window, " of ",
                      patches.sym_size(2 + d));
    patches = patches.unfold(2 + d, window.guard_int(__FILE__, __LINE__), steps[d]).slice(-1, 0, {}, apart[d]);
  }
  // Reshapes [rows, channels, height, width, kernel height, kernel width] to one row per position.
  const c10::SymInt rows = patches.sym_size(0), height = patches.sym_size(2), width = patches.sym_size(3);
  patches = patches.permute({0, 2, 3, 1, 4, 5});
  const c10::SymInt in = weight.sym_size(1), out = weight.sym_size(0) / groups;
  c10::SmallVector<Tensor, 4> sums;
  for (std::int64_t g = 0; g < groups; ++g) {
    const Tensor messages = patches.narrow_symint(3, in * g, in).flatten(3).flatten(0, 2);
    sums.push_back(connection.product(messages, weight.narrow_symint(0, out * g, out).flatten(1)));
  }
  const Tensor sent = at::cat(sums, 1).view_symint({rows, height, width, out * groups}).permute({0, 3, 1, 2});
  return connection.delayed(connection.steps(sent), buffer, delay);
}

void register_connections(torch::Library& library) {
  library.impl("loihi_dense", TORCH_FN(dense));
  library.impl("loihi_sparse", TORCH_FN(sparse));
  library.impl("loihi_delay_dense", TORCH_FN(delay_dense));
  library.impl("loihi_conv", TORCH_FN(conv));
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { register_connections(library); }

// Their parts support vmap; otherwise torch would call them once per map.
SPIKEFORGE_KERNELS(FuncTorchBatched, library) { register_connections(library); }

Arrivals named(YAndBuffer results) { return {std::move(std::get<0>(results)), std::move(std::get<1>(results))}; }

}  // namespace
}  // namespace ops

Arrivals loihi_dense(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& buffer,
                     const LoihiConnectionOptions& options) {
  static const auto op = ops::find_operator<ops::Dense>("spikeforge::loihi_dense");
  return ops::named(op.call(x, weight, buffer, options.delay, options.weight_exp, options.num_message_bits));
}

Arrivals loihi_sparse(const at::Tensor& x, const at::Tensor& crow_indices, const at::Tensor& col_indices,
                      const at::Tensor& values, const std::optional<at::Tensor>& buffer,
                      const LoihiConnectionOptions& options) {
  static const auto op = ops::find_operator<ops::Sparse>("spikeforge::loihi_sparse");
  return ops::named(op.call(x, crow_indices, col_indices, values, buffer, options.delay, options.weight_exp,
                            options.num_message_bits));
}

Arrivals loihi_delay_dense(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delays,
                           std::int64_t max_delay, const std::optional<at::Tensor>& buffer,
                           const LoihiConnectionOptions& options) {
  static const auto op = ops::find_operator<ops::DelayDense>("spikeforge::loihi_delay_dense");
  return ops::named(op.call(x, weight, delays, buffer, max_delay, options.weight_exp, options.num_message_bits));
}

Arrivals loihi_conv(const at::Tensor& x, const at::Tensor& weight, const LoihiConvGeometry& geometry,
                    const std::optional<at::Tensor>& buffer, const LoihiConnectionOptions& options) {
  static const auto op = ops::find_operator<ops::Conv>("spikeforge::loihi_conv");
  return ops::named(op.call(x, weight, buffer, geometry.stride, geometry.padding, geometry.dilation, geometry.groups,
                            options.delay, options.weight_exp, options.num_message_bits));
}

}  // namespace spikeforge
