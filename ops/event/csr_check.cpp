// csr_check: checks the conditions that kernels require of a matrix, with messages. Later calls remember that it
// passed.
#include "ops/common/library.h"
#include "ops/event/product.h"

namespace spikeforge::ops::sparse {
namespace {

// Reads the matrix, from a GPU through a copy.
void csr_check(const at::Tensor& indices, const at::Tensor& indptr, std::int64_t rows, std::int64_t cols, bool sorted) {
  check_matrix("csr_check", indices, indptr, rows, cols);
  check_numbers({.op = "csr_check", .indices = &indices, .indptr = &indptr, .rows = rows, .cols = cols}, sorted);
}

void csr_check_meta(const at::Tensor& indices, const at::Tensor& indptr, std::int64_t rows, std::int64_t cols,
                    bool sorted) {
  check_matrix("csr_check", indices, indptr, rows, cols);
}

SPIKEFORGE_SCHEMAS(library) {
  library.def("csr_check(Tensor indices, Tensor indptr, *, int rows, int cols, bool sorted=True) -> ()");
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl("csr_check", TORCH_FN(csr_check)); }

SPIKEFORGE_KERNELS(Meta, library) { library.impl("csr_check", TORCH_FN(csr_check_meta)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
