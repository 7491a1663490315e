// Products of messages and integer weights, exact modulo 2^32: [rows, in] with [out, in], dense or CSR.
#include "csrc/cpu/loihi/products.h"
#include "csrc/kernels/event/note.h"
#include "ops/common/library.h"
#include "ops/common/verified.h"
#include "ops/loihi/connections.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_sparse_csr_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace spikeforge::ops {
namespace {

using at::Tensor;

// ---- checks ----

// Checks x [rows, in], independently of the matrix.
void check_messages(const char* op, const Tensor& x, std::int64_t num_message_bits) {
  check_integers(op, "x", x, at::kInt, x);
  TORCH_CHECK_VALUE(x.dim() == 2, op, ": x must have shape [rows, in], but has ", x.sym_sizes());
  check_number(op, "num_message_bits", num_message_bits, 0, 32);
}

void check_product(const Tensor& x, const Tensor& weight, std::int64_t num_message_bits) {
  constexpr const char* op = "loihi_product";
  check_messages(op, x, num_message_bits);
  check_integers(op, "weight", weight, at::kInt, x);
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.sym_size(1) == x.sym_size(1), op,
                    ": weight must have shape [out, in] with in = ", x.sym_size(1), ", but has ", weight.sym_sizes());
}

void check_sparse_product(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices, const Tensor& values,
                          std::int64_t num_message_bits) {
  constexpr const char* op = "loihi_sparse_product";
  check_messages(op, x, num_message_bits);
  check_integers(op, "crow_indices", crow_indices, at::kLong, x);
  TORCH_CHECK_VALUE(crow_indices.dim() == 1 && crow_indices.sym_size(0) >= 1, op,
                    ": crow_indices must have shape [out + 1], but has ", crow_indices.sym_sizes());
  check_integers(op, "col_indices", col_indices, at::kLong, x);
  check_integers(op, "values", values, at::kInt, x);
  TORCH_CHECK_VALUE(values.dim() == 1 && col_indices.sym_sizes() == values.sym_sizes(), op,
                    ": col_indices and values must have the same shape [nnz], but have ", col_indices.sym_sizes(),
                    " and ", values.sym_sizes());
}

// Returns the matrix [out, in] for verify. Messages begin with the name of the public operator.
StoredMatrix stored_matrix(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices) {
  return {.op = "loihi_sparse",
          .indices = &col_indices,
          .indptr = &crow_indices,
          .rows = crow_indices.size(0) - 1,
          .cols = x.size(1),
          .indices_name = "col_indices",
          .indptr_name = "crow_indices",
          .cols_name = "in"};
}

// True if messages are spikes, that is, without message bits: any value except 0 counts as 1.
bool are_spikes(std::int64_t num_message_bits) { return num_message_bits == 0; }

// ---- CPU ----

// The number of multiplications below which a second thread does not pay off.
constexpr std::int64_t parallel_multiplications = 65536;

std::int64_t grain(std::int64_t work_each) {
  return std::max<std::int64_t>(1, parallel_multiplications / std::max<std::int64_t>(work_each, 1));
}

Tensor messages(const Tensor& x, std::int64_t num_message_bits) {
  return (are_spikes(num_message_bits) ? x.ne(0).to(at::kInt) : x).contiguous();
}

// Weights are summed column by column for the nonzero messages, which are few in a spiking network. For few rows,
// transposing the weights does not pay off, and each sum is a dot product.
constexpr std::int64_t few_rows = 8;

Tensor product_cpu(const Tensor& x, const Tensor& weight, std::int64_t num_message_bits) {
  check_product(x, weight, num_message_bits);
  const std::int64_t rows = x.size(0), in = x.size(1), out = weight.size(0);
  Tensor y = at::empty({rows, out}, x.options());
  const Tensor m = messages(x, num_message_bits);
  const int* const from = m.const_data_ptr<int>();
  int* const to = y.mutable_data_ptr<int>();
  const cpu::LoihiProducts& kernels = cpu::loihi_products();
  if (rows < few_rows) {
    const Tensor w = weight.contiguous();
    const int* const weights = w.const_data_ptr<int>();
    at::parallel_for(0, out, grain(rows * in), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = 0; r < rows; ++r)
        kernels.dots(from + r * in, weights + first * in, in, last - first, to + r * out + first);
    });
  } else {
    const Tensor w = weight.t().contiguous();
    const int* const columns = w.const_data_ptr<int>();
    at::parallel_for(0, rows, grain(in * out), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) kernels.columns(from + r * in, columns, in, out, to + r * out);
    });
  }
  return y;
}

Tensor sparse_product_cpu(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices, const Tensor& values,
                          std::int64_t num_message_bits) {
  check_sparse_product(x, crow_indices, col_indices, values, num_message_bits);
  const StoredMatrix stored = stored_matrix(x, crow_indices, col_indices);
  verify(stored);
  event::note_kernels([&](const jit::Device&) { return std::vector{check_kernel(stored)}; });
  const std::int64_t rows = x.size(0), in = x.size(1), out = crow_indices.numel() - 1;
  const Tensor crow = crow_indices.contiguous(), col = col_indices.contiguous(), w = values.contiguous();
  Tensor y = at::empty({rows, out}, x.options());
  const Tensor m = messages(x, num_message_bits);
  const auto* const ends = crow.const_data_ptr<std::int64_t>();
  const auto* const columns = col.const_data_ptr<std::int64_t>();
  const int* const weights = w.const_data_ptr<int>();
  const int* const from = m.const_data_ptr<int>();
  int* const to = y.mutable_data_ptr<int>();
  const std::int64_t per_sum = out == 0 ? 1 : col.numel() / out;
  at::parallel_for(0, rows * out, grain(per_sum), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const int* const row = from + i / out * in;
      unsigned sum = 0;
      for (std::int64_t k = ends[i % out]; k < ends[i % out + 1]; ++k)
        sum += static_cast<unsigned>(weights[k]) * static_cast<unsigned>(row[columns[k]]);
      to[i] = static_cast<int>(sum);
    }
  });
  return y;
}

// ---- CUDA ----

// A product in double precision is exact if no sum reaches 2^53. With |w| <= 2^8, this holds for up to 2^45 spikes, and
// for up to 2^14 int32 messages (2^31); with more inputs, the two halves of 16 bits are multiplied separately (2^29).
template <class DoubleProduct> Tensor exact(const Tensor& x, std::int64_t num_message_bits, DoubleProduct&& product) {
  const auto sums = [&](const Tensor& m) { return product(m.to(at::kDouble)).to(at::kLong); };
  // Converts through int64, because a double out of the range of int32 would be clamped, not wrapped.
  if (are_spikes(num_message_bits)) return sums(x.ne(0)).to(at::kInt);
  if (x.size(1) <= (std::int64_t{1} << 14)) return sums(x).to(at::kInt);
  return sums(x.bitwise_right_shift(16)).mul(65536).add(sums(x.bitwise_and(65535))).to(at::kInt);
}

Tensor product_cuda(const Tensor& x, const Tensor& weight, std::int64_t num_message_bits) {
  check_product(x, weight, num_message_bits);
  const Tensor w = weight.to(at::kDouble).t();
  return exact(x, num_message_bits, [&](const Tensor& m) { return at::mm(m, w); });
}

Tensor sparse_product_cuda(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices, const Tensor& values,
                           std::int64_t num_message_bits) {
  check_sparse_product(x, crow_indices, col_indices, values, num_message_bits);
  const std::int64_t rows = x.size(0), in = x.size(1), out = crow_indices.numel() - 1;
  if (rows == 0 || in == 0 || out == 0 || values.numel() == 0) return at::zeros({rows, out}, x.options());
  Tensor crow = crow_indices, col = col_indices;
#if defined(SPIKEFORGE_WITH_CUDA)
  // cuSPARSE does not check indices: until the check has finished, it gets indices that are clamped to the range.
  if (verify_on_gpu(stored_matrix(x, crow_indices, col_indices)) != nullptr) {
    col = col.clamp(0, in - 1);
    crow = std::get<0>(crow.clamp(0, values.numel()).cummax(0));
  }
#endif
  const Tensor w = at::_sparse_csr_tensor_unsafe(crow, col, values.to(at::kDouble), {out, in},
                                                 x.options().dtype(at::kDouble).layout(at::kSparseCsr));
  return exact(x, num_message_bits, [&](const Tensor& m) { return at::mm(w, m.t()).t(); }).contiguous();
}

// ---- Meta ----

Tensor product_meta(const Tensor& x, const Tensor& weight, std::int64_t num_message_bits) {
  check_product(x, weight, num_message_bits);
  return at::empty_symint({x.sym_size(0), weight.sym_size(0)}, x.options());
}

Tensor sparse_product_meta(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices, const Tensor& values,
                           std::int64_t num_message_bits) {
  check_sparse_product(x, crow_indices, col_indices, values, num_message_bits);
  return at::empty_symint({x.sym_size(0), crow_indices.sym_size(0) - 1}, x.options());
}

SPIKEFORGE_KERNELS(CPU, library) {
  library.impl("loihi_product", TORCH_FN(product_cpu));
  library.impl("loihi_sparse_product", TORCH_FN(sparse_product_cpu));
}
SPIKEFORGE_KERNELS(CUDA, library) {
  library.impl("loihi_product", TORCH_FN(product_cuda));
  library.impl("loihi_sparse_product", TORCH_FN(sparse_product_cuda));
}
SPIKEFORGE_KERNELS(Meta, library) {
  library.impl("loihi_product", TORCH_FN(product_meta));
  library.impl("loihi_sparse_product", TORCH_FN(sparse_product_meta));
}

}  // namespace
}  // namespace spikeforge::ops
