// Products of messages and integer weights, exact modulo 2^32: [rows, in] with [out, in], dense or CSR.
#include <spikeforge/cpu/loihi_products.h>
#include <spikeforge/ops/loihi/connections.h>

#include <ATen/Parallel.h>
#include <ATen/ops/_sparse_csr_tensor_unsafe.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>

namespace spikeforge::ops {
namespace {

using at::Tensor;

// Without message bits, a message is a spike: anything but 0 is 1.
bool are_spikes(std::int64_t num_message_bits) { return num_message_bits == 0; }

// ---- CPU ----

// Multiplications below which a second thread costs more than it brings.
constexpr std::int64_t parallel_multiplications = 65536;

std::int64_t grain(std::int64_t work_each) {
  return std::max<std::int64_t>(1, parallel_multiplications / std::max<std::int64_t>(work_each, 1));
}

Tensor messages(const Tensor& x, std::int64_t num_message_bits) {
  return (are_spikes(num_message_bits) ? x.ne(0).to(at::kInt) : x).contiguous();
}

// Weights are added up column by column, for the messages that are not 0, which in a spiking network are few. A few
// rows do not pay for turning the weights around; each of their sums is a dot product.
constexpr std::int64_t few_rows = 8;

Tensor product_cpu(const Tensor& x, const Tensor& weight, std::int64_t num_message_bits) {
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

void check_csr(const Tensor& crow, const Tensor& col, std::int64_t in) {
  constexpr const char* op = "loihi_sparse";
  const std::int64_t out = crow.numel() - 1, nnz = col.numel();
  const auto* const rows = crow.const_data_ptr<std::int64_t>();
  bool ascends = rows[0] == 0 && rows[out] == nnz;
  for (std::int64_t o = 0; ascends && o < out; ++o) ascends = rows[o] <= rows[o + 1];
  TORCH_CHECK_VALUE(ascends, op, ": crow_indices must ascend from 0 to ", nnz, ", the number of values");
  check_elements(op, "col_indices", col, 0, in - 1);
}

Tensor sparse_product_cpu(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices, const Tensor& values,
                          std::int64_t num_message_bits) {
  const std::int64_t rows = x.size(0), in = x.size(1), out = crow_indices.numel() - 1;
  const Tensor crow = crow_indices.contiguous(), col = col_indices.contiguous(), w = values.contiguous();
  check_csr(crow, col, in);
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

// The product of double precision is exact as long as no sum reaches 2^53. |w| <= 2^8: spikes stay below for up to 2^45
// of them, int32 messages (2^31) for up to 2^14; of more, each 16 bits are multiplied apart (2^29).
template <class DoubleProduct>
Tensor exact(const Tensor& x, std::int64_t num_message_bits, DoubleProduct&& product) {
  const auto sums = [&](const Tensor& m) { return product(m.to(at::kDouble)).to(at::kLong); };
  // Through int64: a double beyond int32 would be clamped, not wrapped.
  if (are_spikes(num_message_bits)) return sums(x.ne(0)).to(at::kInt);
  if (x.size(1) <= (std::int64_t{1} << 14)) return sums(x).to(at::kInt);
  return sums(x.bitwise_right_shift(16)).mul(65536).add(sums(x.bitwise_and(65535))).to(at::kInt);
}

Tensor product_cuda(const Tensor& x, const Tensor& weight, std::int64_t num_message_bits) {
  const Tensor w = weight.to(at::kDouble).t();
  return exact(x, num_message_bits, [&](const Tensor& m) { return at::mm(m, w); });
}

Tensor sparse_product_cuda(const Tensor& x, const Tensor& crow_indices, const Tensor& col_indices, const Tensor& values,
                           std::int64_t num_message_bits) {
  const std::int64_t rows = x.size(0), in = x.size(1), out = crow_indices.numel() - 1;
  if (rows == 0 || out == 0 || values.numel() == 0) return at::zeros({rows, out}, x.options());
  const Tensor w = at::_sparse_csr_tensor_unsafe(crow_indices, col_indices, values.to(at::kDouble), {out, in},
                                                 x.options().dtype(at::kDouble).layout(at::kSparseCsr));
  return exact(x, num_message_bits, [&](const Tensor& m) { return at::mm(w, m.t()).t(); }).contiguous();
}

// ---- Meta ----

Tensor product_meta(const Tensor& x, const Tensor& weight, std::int64_t) {
  return at::empty_symint({x.sym_size(0), weight.sym_size(0)}, x.options());
}

Tensor sparse_product_meta(const Tensor& x, const Tensor& crow_indices, const Tensor&, const Tensor&, std::int64_t) {
  return at::empty_symint({x.sym_size(0), crow_indices.sym_size(0) - 1}, x.options());
}

TORCH_LIBRARY_IMPL(spikeforge, CPU, library) {
  library.impl("loihi_product", TORCH_FN(product_cpu));
  library.impl("loihi_sparse_product", TORCH_FN(sparse_product_cpu));
}
TORCH_LIBRARY_IMPL(spikeforge, CUDA, library) {
  library.impl("loihi_product", TORCH_FN(product_cuda));
  library.impl("loihi_sparse_product", TORCH_FN(sparse_product_cuda));
}
TORCH_LIBRARY_IMPL(spikeforge, Meta, library) {
  library.impl("loihi_product", TORCH_FN(product_meta));
  library.impl("loihi_sparse_product", TORCH_FN(sparse_product_meta));
}

}  // namespace
}  // namespace spikeforge::ops
