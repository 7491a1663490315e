#include "ops/event/product.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <sstream>

namespace spikeforge::ops::sparse {
namespace {

std::string shape_text(const at::Tensor& t) {
  std::ostringstream text;
  text << t.sym_sizes();
  return text.str();
}

}  // namespace

Values parse_values(std::string_view name, const char* op) {
  for (const Values each : {Values::event, Values::graded, Values::number})
    if (name == name_of(each)) return each;
  TORCH_CHECK_VALUE(false, op, R"(: values must be "event", "graded" or "number", but is ")", name, "\"");
}

const char* ProductCall::name() const {
  constexpr const char* names[2][2][2] = {{{"ellmv", "ellmm"}, {"csrmv", "csrmm"}},
                                          {{"event_ellmv", "event_ellmm"}, {"event_csrmv", "event_csrmm"}}};
  const bool of_events = options.values != Values::number;
  return names[of_events ? 1 : 0][indptr.has_value() ? 1 : 0][options.matrix ? 1 : 0];
}

void check_same_device(const char* op, const char* name, const at::Tensor& t, const at::Tensor& indices) {
  check_device({op, "indices", indices}, name, t);
}

void check_size(const char* op, const c10::SymInt& rows, const c10::SymInt& cols) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  TORCH_CHECK_VALUE(rows >= 0 && rows <= most, op, ": rows must be from 0 to 2^31, but is ", rows);
  TORCH_CHECK_VALUE(cols >= 0 && cols <= most, op, ": cols must be from 0 to 2^31, but is ", cols);
}

void check_matrix(const char* op, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                  const c10::SymInt& rows, const c10::SymInt& cols) {
  check_size(op, rows, cols);
  TORCH_CHECK_TYPE(indices.layout() == c10::kStrided && indices.scalar_type() == c10::ScalarType::Int, op,
                   ": indices must be a dense int32 tensor, but is ", indices.layout(), " ", indices.scalar_type(),
                   "; pass indices.to(torch.int32)");
  if (!indptr.has_value()) {
    TORCH_CHECK_VALUE(indices.dim() == 2 && indices.sym_size(0) == rows, op,
                      ": indices must have shape [rows, connections a row] with rows = ", rows, ", but has ",
                      shape_text(indices));
    return;
  }
  TORCH_CHECK_VALUE(indices.dim() == 1, op, ": indices must have one dimension, but has shape ", shape_text(indices));
  TORCH_CHECK_TYPE(
      indptr->layout() == c10::kStrided &&
          (indptr->scalar_type() == c10::ScalarType::Int || indptr->scalar_type() == c10::ScalarType::Long),
      op, ": indptr must be a dense int32 or int64 tensor, but is ", indptr->layout(), " ", indptr->scalar_type());
  TORCH_CHECK_VALUE(indptr->dim() == 1 && indptr->sym_size(0) == rows + 1, op,
                    ": indptr must have shape [rows + 1] = [", rows + 1, "], but has ", shape_text(*indptr));
  check_same_device(op, "indptr", *indptr, indices);
}

void check_indptr(const char* op, const event::Rows& rows) {
  if (rows.indptr == nullptr) return;
  const bool right = rows.begin(0) == 0 && rows.begin(rows.rows) == rows.nnz &&
                     (rows.wide_indptr ? never_decreases(static_cast<const std::int64_t*>(rows.indptr), rows.rows + 1)
                                       : never_decreases(static_cast<const std::int32_t*>(rows.indptr), rows.rows + 1));
  TORCH_CHECK_VALUE(right, op, ": indptr must begin with 0, never decrease and end with ", rows.nnz,
                    ", the number of indices; csr_check reports the place");
}

void check_entries(const char* op, const char* argument, const at::Tensor& x, const Options& options) {
  const bool events = options.values != Values::number;
  const bool is_bool = x.scalar_type() == c10::ScalarType::Bool;
  TORCH_CHECK_TYPE(x.layout() == c10::kStrided && ((is_bool && events) || is_supported(x.scalar_type())), op, ": ",
                   argument, " must be a dense ", events ? "bool, " : "",
                   "float16, bfloat16, float32 or float64 tensor, but is ", x.layout(), " ", x.scalar_type());
  const std::int64_t own = options.matrix ? 2 : 1;
  TORCH_CHECK_VALUE(x.dim() >= own && x.sym_size(-own) == options.in(), op, ": ", argument, " must have shape [..., ",
                    options.transpose ? "rows" : "cols", options.matrix ? ", n]" : "]", " with ",
                    options.transpose ? "rows" : "cols", " = ", options.in(),
                    options.transpose ? " under transpose" : "", ", but has ", shape_text(x));
}

void check_product(const ProductCall& call) { check_product(call.name(), call); }

void check_product(const char* op, const ProductCall& call) {
  const auto& [weights, indices, indptr, x, options] = call;
  const char* const argument = options.values != Values::number ? "events" : options.matrix ? "matrix" : "vector";

  check_dense_floating(op, "weights", weights);
  check_matrix(op, indices, indptr, options.rows, options.cols);
  TORCH_CHECK_VALUE(weights.sym_numel() == 1 || weights.sym_sizes() == indices.sym_sizes(), op,
                    ": weights must have one element, shared by all connections, or the shape of indices, ",
                    shape_text(indices), ", but has ", shape_text(weights));
  check_same_device(op, "weights", weights, indices);
  check_entries(op, argument, x, options);
  check_same_device(op, argument, x, indices);
}

void check_weight_grad(const WeightGradCall& call) {
  const char* const op = "csr_weight_grad";
  const auto& [x, grad, indices, indptr, options] = call;
  check_matrix(op, indices, indptr, options.rows, options.cols);
  for (const at::Tensor* const t : {&x, &grad})
    TORCH_CHECK_TYPE(t->layout() == c10::kStrided, op, ": ", t == &x ? "x" : "grad", " must be dense, but is ",
                     t->layout());
  const std::int64_t own = options.matrix ? 2 : 1;
  TORCH_CHECK_VALUE(x.dim() >= own && x.sym_size(-own) == options.in(), op, ": x must have ", options.in(),
                    " entries, but has shape ", shape_text(x));
  const c10::SymDimVector sizes = result_sizes(x, options);
  TORCH_CHECK_VALUE(grad.sym_sizes() == c10::SymIntArrayRef(sizes), op, ": grad must have shape ",
                    c10::SymIntArrayRef(sizes), ", that of the result, but has ", shape_text(grad));
  TORCH_CHECK_TYPE(is_supported(grad.scalar_type()), op, ": grad must be floating point, but is ", grad.scalar_type());
  TORCH_CHECK_TYPE(x.scalar_type() == c10::ScalarType::Bool || is_supported(x.scalar_type()), op,
                   ": x must be bool or floating point, but is ", x.scalar_type());
  check_same_device(op, "x", x, indices);
  check_same_device(op, "grad", grad, indices);
}

c10::SymDimVector result_sizes(const at::Tensor& x, const Options& options) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  sizes[sizes.size() - (options.matrix ? 2 : 1)] = options.out();
  return sizes;
}

at::Tensor call_product(const ProductCall& call) {
  static const auto op = find_operator<ProductSchema>("spikeforge::csr_product");
  const Options& o = call.options;
  return op.call(call.weights, call.indices, call.indptr, call.x, o.rows, o.cols, o.transpose, o.matrix,
                 name_of(o.values), o.deterministic, o.unchecked);
}

at::Tensor call_weight_grad(const WeightGradCall& call) {
  static const auto op = find_operator<WeightGradSchema>("spikeforge::csr_weight_grad");
  const Options& o = call.options;
  return op.call(call.x, call.grad, call.indices, call.indptr, o.rows, o.cols, o.transpose, o.matrix, name_of(o.values),
                 o.unchecked);
}

Vectors vectors_of(const at::Tensor& t, bool matrix) {
  const std::int64_t own = matrix ? 2 : 1;
  Vectors vectors;
  for (std::int64_t d = 0; d < t.dim() - own; ++d) vectors.batches *= t.size(d);
  vectors.length = t.size(-own);
  vectors.n = matrix ? t.size(-1) : 1;
  return vectors;
}

event::EntryType entry_type_of(c10::ScalarType type) {
  if (type == c10::ScalarType::Bool) return event::EntryType::boolean;
  return event::entry_type(dtype_of(type));
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const auto range = [](const at::Tensor& t) {
    std::int64_t last = 0;
    for (std::int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    const auto begin = reinterpret_cast<std::uintptr_t>(t.const_data_ptr());
    return std::pair(begin, begin + static_cast<std::uintptr_t>((last + 1) * t.element_size()));
  };
  const auto [a_begin, a_end] = range(a);
  const auto [b_begin, b_end] = range(b);
  return a_begin < b_end && b_begin < a_end;
}

HeldRows hold_rows(const at::Tensor& indices, const std::optional<at::Tensor>& indptr, std::int64_t rows,
                   std::int64_t cols) {
  HeldRows held{.indices = indices.contiguous(), .indptr = {}, .rows = {}};
  held.rows = {
      .indices = held.indices.const_data_ptr<std::int32_t>(), .rows = rows, .cols = cols, .nnz = held.indices.numel()};
  if (indptr.has_value()) {
    held.indptr = indptr->contiguous();
    held.rows.indptr = held.indptr.const_data_ptr();
    held.rows.wide_indptr = held.indptr.scalar_type() == c10::ScalarType::Long;
  } else {
    held.rows.width = held.indices.size(1);
  }
  return held;
}

bool is_deterministic(const Options& options) {
  return options.deterministic || at::globalContext().deterministicAlgorithms();
}

event::Product gpu_product(const at::Tensor& weights, const event::Rows& rows, const at::Tensor& x,
                           const Options& options) {
  const Vectors in = vectors_of(x, options.matrix);
  return {.weight = dtype_of(weights.scalar_type()),
          .entry = entry_type_of(x.scalar_type()),
          .values = options.values,
          .homogeneous = weights.numel() == 1,
          .indptr_bytes = static_cast<std::uint8_t>(rows.indptr == nullptr ? 0
                                                    : rows.wide_indptr     ? 8
                                                                           : 4),
          .transpose = options.transpose,
          .deterministic = is_deterministic(options),
          .rows = rows.rows,
          .cols = rows.cols,
          .nnz = rows.nnz,
          .n = in.n,
          .batches = in.batches};
}

}  // namespace spikeforge::ops::sparse
