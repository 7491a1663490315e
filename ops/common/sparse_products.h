// The products of stored sparse matrices that layers of other families are composed of. ops/event implements them.
#pragma once

#include "csrc/kernels/event/product.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace spikeforge::ops::sparse {

using event::Values;

// A matrix in CSR form, and the values that its entries count.
struct CsrMatrix {
  const at::Tensor &weights, &indices, &indptr;
  std::int64_t rows, cols;
  Values values;
  bool unchecked;  // the caller has checked the indices
};

// Adds e A of x [n, rows] to a ring of sums [slots, n, cols], as event_csrmv_delayed_.
void deliver_(const CsrMatrix& matrix, const at::Tensor& x, const at::Tensor& delays, const at::Tensor& ring,
              const at::Tensor& step);

// Returns A x [rows, n] of x [cols, n].
at::Tensor product(const CsrMatrix& matrix, const at::Tensor& x);

// Returns A x, and adds to `sums`, in the shape of the indices, the gradient of the weights in e A for the gradient x
// of its result. e is [rows, n], and read as `values`; x, the weights and the sums have one type.
at::Tensor product_and_weight_grad(const CsrMatrix& matrix, const at::Tensor& x, const at::Tensor& e, Values values,
                                   const at::Tensor& sums);

// Returns the contribution of each entry in this type; its gradient is straight-through for events.
at::Tensor counted(const at::Tensor& x, Values values, c10::ScalarType type);

// Throws ValueError for other names; `op` begins the message.
Values parse_values(std::string_view name, const char* op = "csr_product");

// Checks the types, shapes and devices of a matrix.
void check_matrix(const char* op, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                  const c10::SymInt& rows, const c10::SymInt& cols);

}  // namespace spikeforge::ops::sparse
