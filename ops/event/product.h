// Shared by the operators of sparse matrices: options, checks, memory. And csr_product, the product of a stored matrix,
// the base of event_csrmv, csrmm, event_ellmv and others.
#pragma once

#include "csrc/kernels/event/plan.h"
#include "csrc/kernels/event/product.h"
#include "ops/common/layout.h"
#include "ops/common/sparse_products.h"
#include "ops/common/verified.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace spikeforge::ops::sparse {

inline Values event_values(bool graded) { return graded ? Values::graded : Values::event; }

// The options of a product.
struct Options {
  c10::SymInt rows, cols;  // of the stored matrix
  bool transpose = false;
  bool matrix = false;  // true: x is [..., in, n]; false: [..., in]
  Values values{};
  bool deterministic = false;
  bool unchecked = false;  // the caller has checked the matrix

  const c10::SymInt& in() const { return transpose ? rows : cols; }
  const c10::SymInt& out() const { return transpose ? cols : rows; }
};

// Checks x as an argument of `op`, for any kind of matrix.
void check_entries(const char* op, const char* argument, const at::Tensor& x, const Options& options);

// Checks the size of a matrix. `op` begins the message.
void check_size(const char* op, const c10::SymInt& rows, const c10::SymInt& cols);
// Checks the begins of rows of a matrix on the CPU in every call, which is cheap compared to a product. Indices are not
// read.
void check_indptr(const char* op, const event::Rows& rows);
void check_same_device(const char* op, const char* name, const at::Tensor& t, const at::Tensor& indices);

// Returns the sizes of the result, [..., out] or [..., out, n].
c10::SymDimVector result_sizes(const at::Tensor& x, const Options& options);

// Unpacks the first n entries of a result of pack_events to bool [..., n].
at::Tensor unpack(const at::Tensor& packed, const c10::SymInt& n);

// ---- the lowered operators of stored matrices ----

// csr_product
struct ProductCall {
  const at::Tensor& weights;
  const at::Tensor& indices;
  const std::optional<at::Tensor>& indptr;
  const at::Tensor& x;
  Options options;

  // The name of the public operator for messages, such as "event_csrmv".
  const char* name() const;
};

// csr_weight_grad: x is the argument of the product, and grad the gradient of its result.
struct WeightGradCall {
  const at::Tensor& x;
  const at::Tensor& grad;
  const at::Tensor& indices;
  const std::optional<at::Tensor>& indptr;
  Options options;
};

// Runs all checks of a call, except of the indices of the matrix. Kernels have none.
void check_product(const ProductCall& call);
void check_product(const char* op, const ProductCall& call);
void check_weight_grad(const WeightGradCall& call);

// Returns the number of rows of a matrix in the ELL form; 0 for illegal indices, which check_matrix reports.
inline c10::SymInt ell_rows(const at::Tensor& indices) {
  return indices.dim() == 2 ? indices.sym_size(0) : c10::SymInt(0);
}

// Call the operators through the dispatcher.
at::Tensor call_product(const ProductCall& call);
at::Tensor call_weight_grad(const WeightGradCall& call);

// Adds the gradient of the weights to sums on the CPU.
void add_weight_grad_cpu(const WeightGradCall& call, const at::Tensor& sums);

// product_and_weight_grad as one launch; e is in the type of sums.
at::Tensor product_and_weight_grad_cuda(const CsrMatrix& matrix, const at::Tensor& x, const at::Tensor& e,
                                        const at::Tensor& sums);

// Convert `run` to kernels for the dispatcher.
template <at::Tensor (*run)(const ProductCall&)>
at::Tensor product_kernel(const at::Tensor& weights, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                          const at::Tensor& x, c10::SymInt rows, c10::SymInt cols, bool transpose, bool matrix,
                          std::string_view values, bool deterministic, bool unchecked) {
  return run({weights,
              indices,
              indptr,
              x,
              {std::move(rows), std::move(cols), transpose, matrix, parse_values(values), deterministic, unchecked}});
}

template <at::Tensor (*run)(const WeightGradCall&)>
at::Tensor weight_grad_kernel(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& indices,
                              const std::optional<at::Tensor>& indptr, c10::SymInt rows, c10::SymInt cols,
                              bool transpose, bool matrix, std::string_view values, bool unchecked) {
  return run({x,
              grad,
              indices,
              indptr,
              {std::move(rows), std::move(cols), transpose, matrix, parse_values(values), false, unchecked}});
}

using ProductSchema = decltype(product_kernel<call_product>);
using WeightGradSchema = decltype(weight_grad_kernel<call_weight_grad>);

// ---- plain memory ----

// `count` vectors in memory: vector v begins at base + offset(v), with `stride` between its entries.
struct Vectors {
  std::int64_t batches = 1;  // product of the leading dimensions
  std::int64_t n = 1;        // columns of one batch
  std::int64_t length = 0;

  std::int64_t count() const { return batches * n; }
  std::int64_t stride() const { return n; }
  std::int64_t offset(std::int64_t v) const { return v / n * length * n + v % n; }
};
// Returns the vectors of a contiguous [..., length] or [..., length, n].
Vectors vectors_of(const at::Tensor& t, bool matrix);

event::EntryType entry_type_of(c10::ScalarType type);

// An entry of a bool tensor. With torch's views, it may be a byte other than 0 and 1, which C++ must not read as bool.
class Truth {
 public:
  explicit operator bool() const { return byte_ != 0; }
  template <class C>
  requires(!std::same_as<C, bool>) explicit operator C() const { return byte_ != 0 ? C(1) : C(0); }
  friend bool operator>(Truth truth, int number) { return int{truth.byte_ != 0} > number; }

 private:
  std::uint8_t byte_;
};
static_assert(sizeof(Truth) == sizeof(bool));

// Calls f with a pointer to the entries of a contiguous tensor, of type Truth or floating point.
template <class F> void with_entries(const at::Tensor& x, F&& f) {
  if (x.scalar_type() == c10::ScalarType::Bool) return f(static_cast<const Truth*>(x.const_data_ptr()));
  switch (dtype_of(x.scalar_type())) {
    case DType::f16: return f(x.const_data_ptr<c10::Half>());
    case DType::bf16: return f(x.const_data_ptr<c10::BFloat16>());
    case DType::f32: return f(x.const_data_ptr<float>());
    default: return f(x.const_data_ptr<double>());
  }
}

// True if a write to one may change the other. Comparing storages is not sufficient, because two may have the same
// memory.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

// Contiguous rows and the tensors that own their memory.
struct HeldRows {
  at::Tensor indices, indptr;
  event::Rows rows;
};
HeldRows hold_rows(const at::Tensor& indices, const std::optional<at::Tensor>& indptr, std::int64_t rows,
                   std::int64_t cols);
template <class Call> HeldRows hold_rows(const Call& call) {
  return hold_rows(call.indices, call.indptr, call.options.rows.expect_int(), call.options.cols.expect_int());
}

// Returns the matrix of a call, after its other checks, in the form for verify. `op` must outlive it.
template <class Call> StoredMatrix stored_matrix(const char* op, const Call& call) {
  return {.op = op,
          .indices = &call.indices,
          .indptr = call.indptr.has_value() ? &*call.indptr : nullptr,
          .rows = call.options.rows.expect_int(),
          .cols = call.options.cols.expect_int()};
}

// True with `deterministic` or torch.use_deterministic_algorithms.
bool is_deterministic(const Options& options);

// Returns the properties of a call by which GPU kernels are chosen.
event::Product gpu_product(const at::Tensor& weights, const event::Rows& rows, const at::Tensor& x,
                           const Options& options);

}  // namespace spikeforge::ops::sparse
