// csr_check: what the kernels take for granted of a matrix's numbers, read once. On a matrix that passes, nothing reads
// out of bounds.
#include <spikeforge/ops/event/product.h>

#include <c10/util/Exception.h>
#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

// Reads the matrix, from a GPU through a copy.
void csr_check(const at::Tensor& indices, const at::Tensor& indptr, std::int64_t rows, std::int64_t cols, bool sorted) {
  check_numbers("csr_check", indices, indptr, rows, cols, sorted);
}

void csr_check_meta(const at::Tensor& indices, const at::Tensor& indptr, std::int64_t rows, std::int64_t cols,
                    bool sorted) {
  check_matrix("csr_check", indices, indptr, rows, cols);
}

TORCH_LIBRARY_FRAGMENT(spikeforge, library) {
  library.def("csr_check(Tensor indices, Tensor indptr, *, int rows, int cols, bool sorted=True) -> ()",
              {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(spikeforge, CompositeExplicitAutograd, library) { library.impl("csr_check", TORCH_FN(csr_check)); }

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) { library.impl("csr_check", TORCH_FN(csr_check_meta)); }

}  // namespace

void check_numbers(const char* op, const at::Tensor& indices, const at::Tensor& indptr, std::int64_t rows,
                   std::int64_t cols, bool sorted) {
  check_matrix(op, indices, indptr, rows, cols);
  const HeldRows held = hold_rows(indices.cpu(), indptr.cpu(), rows, cols);
  const event::Rows& matrix = held.rows;
  TORCH_CHECK_VALUE(matrix.begin(0) == 0, op, ": indptr must begin with 0, but begins with ", matrix.begin(0));
  for (std::int64_t i = 0; i < rows; ++i)
    TORCH_CHECK_VALUE(matrix.begin(i) <= matrix.end(i), op, ": indptr must not decrease, but indptr[", i, "] is ",
                      matrix.begin(i), " and indptr[", i + 1, "] is ", matrix.end(i));
  TORCH_CHECK_VALUE(matrix.begin(rows) == matrix.nnz, op, ": indptr must end with ", matrix.nnz,
                    ", the number of indices, but ends with ", matrix.begin(rows));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = matrix.begin(i); k < matrix.end(i); ++k) {
      const std::int32_t column = matrix.indices[k];
      TORCH_CHECK_VALUE(column >= 0 && column < cols, op, ": indices must be from 0 to cols - 1 = ", cols - 1,
                        ", but indices[", k, "], in row ", i, ", is ", column);
      TORCH_CHECK_VALUE(!sorted || k == matrix.begin(i) || matrix.indices[k - 1] <= column, op,
                        ": the indices of a row must not decrease, but indices[", k - 1, "] is ", matrix.indices[k - 1],
                        " and indices[", k, "], in the same row ", i, ", is ", column,
                        "; sort them, or pass sorted=False: no operator needs their order");
    }
}

}  // namespace spikeforge::ops::sparse
