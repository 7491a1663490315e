// The product of a sparse matrix and events or numbers, beneath event_csrmv, csrmm, event_ellmv and their like.
#pragma once

#include <spikeforge/kernels/event/product.h>
#include <spikeforge/kernels/event/plan.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <string>
#include <string_view>

namespace spikeforge::ops::sparse {

using spikeforge::event::Values;

// `op` begins the message.
Values parse_values(std::string_view name, const char* op = "csr_product");
std::string_view name_of(Values values);

// What is said of a product beside its tensors.
struct Form {
  c10::SymInt rows, cols;  // of the stored matrix
  bool transpose = false;
  bool matrix = false;  // x is [..., in, n], else [..., in]
  Values values{};
  bool deterministic = false;

  const c10::SymInt& in() const { return transpose ? rows : cols; }
  const c10::SymInt& out() const { return transpose ? cols : rows; }
};

// "event_csrmv": how the operator that a user called begins its messages.
std::string operator_name(const Form& form, bool ell);

// Every check of a product: all that kernels take for granted, but for what csr_check reads.
void check_product(const at::Tensor& weights, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                   const at::Tensor& x, const Form& form);

// Of the lowered operator: x and grad are the product's argument and its result's gradient.
void check_weight_grad(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& indices,
                       const std::optional<at::Tensor>& indptr, const Form& form);

// x as an argument of `op`, whatever the matrix.
void check_entries(const char* op, const char* argument, const at::Tensor& x, const Form& form);

// The matrix alone. `op` begins the message.
void check_size(const char* op, const c10::SymInt& rows, const c10::SymInt& cols);
void check_matrix(const char* op, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                  const c10::SymInt& rows, const c10::SymInt& cols);
// And its numbers, which are read: what csr_check does.
void check_numbers(const char* op, const at::Tensor& indices, const at::Tensor& indptr, std::int64_t rows,
                   std::int64_t cols, bool sorted);
// Of a matrix on the CPU, at every call: where rows begin, which costs little beside a product. Indices are not read.
void check_indptr(const char* op, const spikeforge::event::Rows& rows);
void check_same_device(const char* op, const char* name, const at::Tensor& t, const at::Tensor& indices);

// [..., out] or [..., out, n]
c10::SymDimVector result_sizes(const at::Tensor& x, const Form& form);

// The lowered operators, through the dispatcher.
using ProductSchema = at::Tensor(const at::Tensor& weights, const at::Tensor& indices,
                                 const std::optional<at::Tensor>& indptr, const at::Tensor& x, c10::SymInt rows,
                                 c10::SymInt cols, bool transpose, bool matrix, c10::string_view values,
                                 bool deterministic);
using WeightGradSchema = at::Tensor(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& indices,
                                    const std::optional<at::Tensor>& indptr, c10::SymInt rows, c10::SymInt cols,
                                    bool transpose, bool matrix, c10::string_view values);

at::Tensor call_product(const at::Tensor& weights, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                        const at::Tensor& x, const Form& form);
at::Tensor call_weight_grad(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& indices,
                            const std::optional<at::Tensor>& indptr, const Form& form);

// The first n entries of bits as pack_events makes them: bool [..., n].
at::Tensor unpack(const at::Tensor& packed, const c10::SymInt& n);

template <class Schema>
c10::TypedOperatorHandle<Schema> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Schema>();
}

// ---- plain memory ----

// `count` vectors in memory of their own layout: vector v begins at base + offset(v), its entries lie `stride` apart.
struct Vectors {
  std::int64_t batches = 1;  // product of the leading dimensions
  std::int64_t n = 1;        // columns of one batch
  std::int64_t length = 0;

  std::int64_t count() const { return batches * n; }
  std::int64_t stride() const { return n; }
  std::int64_t offset(std::int64_t v) const { return v / n * length * n + v % n; }
};
// Of a contiguous [..., length] or [..., length, n].
Vectors vectors_of(const at::Tensor& t, bool matrix);

spikeforge::event::EntryType entry_type_of(c10::ScalarType type);

// The contiguous tensors that a view points into, kept for as long as it.
struct HeldRows {
  at::Tensor indices, indptr;
  spikeforge::event::Rows rows;
};
HeldRows hold_rows(const at::Tensor& indices, const std::optional<at::Tensor>& indptr, std::int64_t rows,
                   std::int64_t cols);

// torch.use_deterministic_algorithms counts as `deterministic`.
bool is_deterministic(const Form& form);

// What decides the kernels of a GPU.
jit::EventProduct gpu_product(const at::Tensor& weights, const spikeforge::event::Rows& rows, const at::Tensor& x,
                                  const Form& form);

}  // namespace spikeforge::ops::sparse
