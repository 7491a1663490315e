#include <spikeforge/ops/common/layout.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/loihi.h>
#include <spikeforge/ops/loihi/connections.h>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <tuple>

namespace spikeforge {
namespace ops {

void check_number(const char* op, const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  TORCH_CHECK_VALUE(least <= value && value <= most, op, ": ", name, " must lie in [", least, ", ", most, "], but is ",
                    value);
}

void check_integers(const char* op, const char* name, const at::Tensor& t, c10::ScalarType type, const at::Tensor& x) {
  TORCH_CHECK_TYPE(t.scalar_type() == type, op, ": ", name, " must be ", type, ", but is ", t.scalar_type(), "; pass ",
                   name, type == at::kInt ? ".to(torch.int32)" : ".to(torch.int64)");
  TORCH_CHECK_TYPE(t.layout() == c10::kStrided, op, ": ", name, " must be a dense tensor, but its layout is ",
                   t.layout());
  TORCH_CHECK_VALUE(t.device() == x.device(), op, ": ", name, " must be on ", x.device(),
                    ", the device of x, but is on ", t.device());
}

void check_elements(const char* op, const char* name, const at::Tensor& t, std::int64_t least, std::int64_t most) {
  if (!t.is_cpu() || at::isTensorSubclassLike(t) || t.numel() == 0) return;
  const auto [low, high] = at::aminmax(t);
  const auto lowest = low.item<std::int64_t>(), highest = high.item<std::int64_t>();
  TORCH_CHECK_VALUE(least <= lowest && highest <= most, op, ": ", name, " must lie in [", least, ", ", most,
                    "], but has values from ", lowest, " to ", highest);
}

namespace {

using at::Tensor;
using YAndBuffer = std::tuple<Tensor, Tensor>;
using Product = Tensor(const Tensor&, const Tensor&, std::int64_t);
using SparseProduct = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t);
using Dense = YAndBuffer(const Tensor&, const Tensor&, const OptionalTensor&, std::int64_t, std::int64_t, std::int64_t);
using Sparse = YAndBuffer(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                          std::int64_t, std::int64_t, std::int64_t);
using DelayDense = YAndBuffer(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, std::int64_t,
                              std::int64_t, std::int64_t);

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// A call of a connection, for its checks and shapes. All tensors lie beside x.
class Connection {
 public:
  Connection(const char* op, const Tensor& x, std::int64_t weight_exp, std::int64_t num_message_bits)
      : op_(op), x_(x), weight_exp_(weight_exp) {
    check_type("x", x, at::kInt);
    TORCH_CHECK_VALUE(x.dim() >= 2, op, ": x must have shape [T, *batch, in], but has ", x.sym_sizes());
    check_number(op, "weight_exp", weight_exp, -8, 7);
    check_number(op, "num_message_bits", num_message_bits, 0, 32);
  }

  void check_type(const char* name, const Tensor& t, c10::ScalarType type) const {
    check_integers(op_, name, t, type, x_);
  }

  void check_weight(const char* name, const Tensor& weight) const {
    check_type(name, weight, at::kInt);
    check_elements(op_, name, weight, least_weight, most_weight);
  }

  // [out, in]
  void check_matrix(const char* name, const Tensor& matrix) const {
    TORCH_CHECK_VALUE(matrix.dim() == 2 && matrix.sym_size(1) == x_.sym_size(-1), op_, ": ", name,
                      " must have shape [out, in] with in = ", x_.sym_size(-1), ", the last dimension of x, but has ",
                      matrix.sym_sizes());
  }

  // x as [rows, in].
  Tensor rows() const {
    c10::SymInt rows = 1;
    for (std::int64_t d = 0; d < x_.dim() - 1; ++d) rows = rows * x_.sym_size(d);
    return x_.reshape_symint({rows, x_.sym_size(-1)});
  }

  // [first, *batch, out]
  Sizes<c10::SymInt> sizes(const c10::SymInt& first, const c10::SymInt& out) const {
    Sizes<c10::SymInt> result{first};
    for (std::int64_t d = 1; d < x_.dim() - 1; ++d) result.push_back(x_.sym_size(d));
    result.push_back(out);
    return result;
  }

  // The sums [rows, out] as [T, *batch, out], shifted.
  Tensor shifted(const Tensor& sums) const {
    Tensor steps = sums.view_symint(sizes(x_.sym_size(0), sums.sym_size(1)));
    if (weight_exp_ == 0) return steps;
    return weight_exp_ > 0 ? steps.bitwise_left_shift(weight_exp_) : steps.bitwise_right_shift(-weight_exp_);
  }

  Tensor buffer_or_zeros(const OptionalTensor& buffer, std::int64_t slots, const c10::SymInt& out) const {
    const Sizes<c10::SymInt> expected = sizes(slots, out);
    if (!buffer.has_value() || !buffer->defined()) return at::zeros_symint(expected, x_.options());
    TORCH_CHECK_VALUE(buffer->sym_sizes() == c10::SymIntArrayRef(expected), op_, ": buffer must have shape ",
                      c10::SymIntArrayRef(expected), ", [delay, *batch, out], but has ", buffer->sym_sizes());
    check_type("buffer", *buffer, at::kInt);
    return *buffer;
  }

  // What arrives in these steps, and what later, where every message is on its way for `delay` steps.
  YAndBuffer delayed(const Tensor& sent, const OptionalTensor& buffer, std::int64_t delay) const {
    const Tensor before = buffer_or_zeros(buffer, delay, sent.sym_size(-1));
    if (delay == 0) return {sent, before.clone()};
    const c10::SymInt steps = x_.sym_size(0);
    const c10::SymInt left = (steps - delay).max(0);  // of `sent`, what arrives at once
    return {at::cat({before.slice_symint(0, 0, steps), sent.slice_symint(0, 0, left)}),
            at::cat({before.slice_symint(0, steps), sent.slice_symint(0, left)})};
  }

 private:
  const char* op_;
  const Tensor& x_;
  std::int64_t weight_exp_;
};

YAndBuffer dense(const Tensor& x, const Tensor& weight, const OptionalTensor& buffer, std::int64_t delay,
                 std::int64_t weight_exp, std::int64_t num_message_bits) {
  static const auto product = find<Product>("spikeforge::loihi_product");
  const Connection connection("loihi_dense", x, weight_exp, num_message_bits);
  connection.check_matrix("weight", weight);
  connection.check_weight("weight", weight);
  check_number("loihi_dense", "delay", delay, 0, most_delay + 1);
  const Tensor sums = product.call(connection.rows(), weight, num_message_bits);
  return connection.delayed(connection.shifted(sums), buffer, delay);
}

YAndBuffer sparse(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices, const Tensor& values,
                  const OptionalTensor& buffer, std::int64_t delay, std::int64_t weight_exp,
                  std::int64_t num_message_bits) {
  static const auto product = find<SparseProduct>("spikeforge::loihi_sparse_product");
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
  check_number(op, "delay", delay, 0, most_delay + 1);
  const Tensor sums = product.call(connection.rows(), crow_indices, col_indices, values, num_message_bits);
  return connection.delayed(connection.shifted(sums), buffer, delay);
}

YAndBuffer delay_dense(const Tensor& x, const Tensor& weight, const Tensor& delays, const OptionalTensor& buffer,
                       std::int64_t max_delay, std::int64_t weight_exp, std::int64_t num_message_bits) {
  static const auto product = find<Product>("spikeforge::loihi_product");
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
  // What arrives in these steps, and in `slots` steps after them.
  const Tensor arriving = at::cat(
      {connection.buffer_or_zeros(buffer, slots, out), at::zeros_symint(connection.sizes(steps, out), x.options())});
  for (std::int64_t delay = 0; delay <= max_delay; ++delay) {
    const Tensor sums = product.call(rows, weight.mul(delays.eq(delay)), num_message_bits);
    arriving.narrow_symint(0, 1 + delay, steps).add_(connection.shifted(sums));
  }
  return {arriving.narrow_symint(0, 0, steps).clone(), arriving.narrow_symint(0, steps, slots).clone()};
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("loihi_dense", TORCH_FN(dense));
  library.impl("loihi_sparse", TORCH_FN(sparse));
  library.impl("loihi_delay_dense", TORCH_FN(delay_dense));
}

Arrivals named(YAndBuffer results) { return {std::move(std::get<0>(results)), std::move(std::get<1>(results))}; }

}  // namespace
}  // namespace ops

Arrivals loihi_dense(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& buffer,
                     const LoihiConnectionOptions& options) {
  static const auto op = ops::find<ops::Dense>("spikeforge::loihi_dense");
  return ops::named(op.call(x, weight, buffer, options.delay, options.weight_exp, options.num_message_bits));
}

Arrivals loihi_sparse(const at::Tensor& x, const at::Tensor& crow_indices, const at::Tensor& col_indices,
                      const at::Tensor& values, const std::optional<at::Tensor>& buffer,
                      const LoihiConnectionOptions& options) {
  static const auto op = ops::find<ops::Sparse>("spikeforge::loihi_sparse");
  return ops::named(op.call(x, crow_indices, col_indices, values, buffer, options.delay, options.weight_exp,
                            options.num_message_bits));
}

Arrivals loihi_delay_dense(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delays,
                           std::int64_t max_delay, const std::optional<at::Tensor>& buffer,
                           const LoihiConnectionOptions& options) {
  static const auto op = ops::find<ops::DelayDense>("spikeforge::loihi_delay_dense");
  return ops::named(op.call(x, weight, delays, buffer, max_delay, options.weight_exp, options.num_message_bits));
}

}  // namespace spikeforge
