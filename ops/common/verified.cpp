#include "ops/common/verified.h"
#include "csrc/kernels/event/plan.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <type_traits>

namespace spikeforge::ops {
namespace {

// The minimum number of elements per thread.
constexpr std::int64_t numbers_of_a_thread = 1 << 16;

template <class F> auto with_integers(const at::Tensor& contiguous, F&& f) {
  if (contiguous.scalar_type() == c10::ScalarType::Int) return f(contiguous.const_data_ptr<std::int32_t>());
  if (contiguous.scalar_type() == c10::ScalarType::Byte) return f(contiguous.const_data_ptr<std::uint8_t>());
  return f(contiguous.const_data_ptr<std::int64_t>());
}

// True if all indices are in [0, bound). It has no branch, so that the compiler vectorises it. Negative values become
// large unsigned ones.
template <class Index> bool lie_below(const Index* numbers, std::int64_t n, std::int64_t bound) {
  using Unsigned = std::make_unsigned_t<Index>;
  const auto most = static_cast<Unsigned>(bound);
  bool wrong = false;
  for (std::int64_t k = 0; k < n; ++k) wrong |= static_cast<Unsigned>(numbers[k]) >= most;
  return !wrong;
}

bool lie_below(const at::Tensor& numbers, std::int64_t bound) {
  if (numbers.scalar_type() == c10::ScalarType::Byte && bound > 255) return true;
  const at::Tensor dense = numbers.contiguous();
  std::atomic<bool> right = true;
  with_integers(dense, [&](const auto* begin) {
    at::parallel_for(0, dense.numel(), numbers_of_a_thread, [&](std::int64_t first, std::int64_t last) {
      if (!lie_below(begin + first, last - first, bound)) right = false;
    });
  });
  return right;
}

bool are_row_begins(const at::Tensor& indptr, std::int64_t nnz) {
  const at::Tensor dense = indptr.contiguous();
  return with_integers(dense, [&](const auto* begins) {
    const std::int64_t n = dense.numel();
    return begins[0] == 0 && begins[n - 1] == nnz && never_decreases(begins, n);
  });
}

bool is_right(const StoredMatrix& m) {
  const std::int64_t nnz = m.indices->numel();
  return (m.indptr == nullptr || are_row_begins(*m.indptr, nnz)) && lie_below(*m.indices, m.cols) &&
         (m.slots == nullptr || lie_below(*m.slots, nnz)) && (m.delays == nullptr || lie_below(*m.delays, m.ring));
}

template <class Begin> void refuse_row_begins(const StoredMatrix& m, const Begin* begins, std::int64_t nnz) {
  TORCH_CHECK_VALUE(begins[0] == 0, m.op, ": ", m.indptr_name, " must begin with 0, but begins with ", begins[0]);
  for (std::int64_t i = 0; i < m.rows; ++i)
    TORCH_CHECK_VALUE(begins[i] <= begins[i + 1], m.op, ": ", m.indptr_name, " must not decrease, but ", m.indptr_name,
                      "[", i, "] is ", begins[i], " and ", m.indptr_name, "[", i + 1, "] is ", begins[i + 1]);
  TORCH_CHECK_VALUE(begins[m.rows] == nnz, m.op, ": ", m.indptr_name, " must end with ", nnz,
                    ", the number of indices, but ends with ", begins[m.rows]);
}

template <class Index, class End>
void refuse_indices(const StoredMatrix& m, const Index* indices, bool sorted, const End& end_of) {
  std::int64_t k = 0;
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (const std::int64_t first = k; k < end_of(i); ++k) {
      TORCH_CHECK_VALUE(indices[k] >= 0 && indices[k] < m.cols, m.op, ": ", m.indices_name, " must be from 0 to ",
                        m.cols_name, " - 1 = ", m.cols - 1, ", but ", m.indices_name, "[", k, "], in row ", i, ", is ",
                        indices[k]);
      TORCH_CHECK_VALUE(!sorted || k == first || indices[k - 1] <= indices[k], m.op,
                        ": the indices of a row must not decrease, but indices[", k - 1, "] is ", indices[k - 1],
                        " and indices[", k, "], in the same row ", i, ", is ", indices[k],
                        "; sort them, or pass sorted=False: no operator needs their order");
    }
}

void refuse_slots(const StoredMatrix& m, const std::int64_t* slots, std::int64_t nnz) {
  for (std::int64_t k = 0; k < nnz; ++k)
    TORCH_CHECK_VALUE(slots[k] >= 0 && slots[k] < nnz, m.op, ": slots must be those of csr_transpose, from 0 to ",
                      nnz - 1, ", but slots[", k, "] is ", slots[k]);
}

void refuse_delays(const StoredMatrix& m) {
  const at::Tensor delays = m.delays->cpu().contiguous();
  with_integers(delays, [&](const auto* begin) {
    for (std::int64_t k = 0; k < delays.numel(); ++k)
      TORCH_CHECK_VALUE(begin[k] >= 0 && begin[k] < m.ring, m.op, ": delays must be from 0 to ", m.ring - 1,
                        ", for the buffer has ", m.ring, " slots, but delays[", k, "] is ",
                        static_cast<std::int64_t>(begin[k]));
  });
}

MatrixMemory<bool>& on_the_host() {
  static auto& verified = *new MatrixMemory<bool>;  // never destroyed: calls are possible during exit
  return verified;
}

void remember(const StoredMatrix& matrix, const std::optional<MatrixKey>& key) {
  if (!key) return;
  if (matrix.indices->is_cpu()) return on_the_host().set(*key, matrix, true);
#if defined(SPIKEFORGE_WITH_CUDA)
  if (matrix.indices->is_cuda()) remember_on_gpu(matrix, *key);
#endif
}

MatrixMemory<bool>& ascending() {
  static auto& matrices = *new MatrixMemory<bool>;
  return matrices;
}

// Reads fields without the checks of the accessors, because every call runs this.
void describe(const at::Tensor& t, const c10::VariableVersion& version, MatrixKey::Numbers& numbers) {
  numbers.storage = t.storage().unsafeGetStorageImpl();
  numbers.data = t.const_data_ptr();
  numbers.type = static_cast<std::int64_t>(t.scalar_type());
  numbers.version = version.current_version();
  std::copy_n(t.sizes().begin(), t.dim(), numbers.sizes.begin());
  std::copy_n(t.strides().begin(), t.dim(), numbers.strides.begin());
}

}  // namespace

std::optional<MatrixKey> MatrixKey::of(const StoredMatrix& matrix) {
  std::optional<MatrixKey> key(std::in_place);
  key->rows = matrix.rows;
  key->cols = matrix.cols;
  key->ring = matrix.ring;
  std::size_t i = 0;
  for (const at::Tensor* const t : {matrix.indices, matrix.indptr, matrix.slots, matrix.delays}) {
    if (t != nullptr) {
      const c10::VariableVersion& version = t->unsafeGetTensorImpl()->version_counter();
      // An inference tensor has no version; a single delay for all connections may have any number of dimensions.
      if (!version.enabled() || !t->has_storage() || static_cast<std::size_t>(t->dim()) > most_dims) {
        key.reset();
        return key;
      }
      describe(*t, version, key->tensors.at(i));
    }
    ++i;
  }
  return key;
}

event::KernelSpec check_kernel(const StoredMatrix& matrix) {
  const std::uint8_t indptr_bytes = matrix.indptr == nullptr                                ? 0
                                    : matrix.indptr->scalar_type() == c10::ScalarType::Long ? 8
                                                                                            : 4;
  event::Delays delays{};
  if (matrix.delays != nullptr)
    delays = matrix.delays->scalar_type() == c10::ScalarType::Byte ? event::Delays::bytes : event::Delays::words;
  return event::check_of(indptr_bytes, matrix.indices->scalar_type() == c10::ScalarType::Long, delays);
}

// Hashes the members that distinguish most matrices: every call computes it.
std::size_t HashOfMatrixKey::operator()(const MatrixKey& key) const {
  std::uint64_t hash = 0;
  for (const MatrixKey::Numbers& numbers : key.tensors)
    for (const std::uint64_t word :
         {reinterpret_cast<std::uintptr_t>(numbers.data), static_cast<std::uint64_t>(numbers.version)})
      hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 32;
}

void check_numbers(const StoredMatrix& matrix, bool sorted) {
  const std::optional<MatrixKey> key = MatrixKey::of(matrix);
  const at::Tensor indices = matrix.indices->cpu().contiguous();
  const std::int64_t nnz = indices.numel();
  if (matrix.indptr != nullptr) {
    const at::Tensor indptr = matrix.indptr->cpu().contiguous();
    with_integers(indptr, [&](const auto* begins) {
      refuse_row_begins(matrix, begins, nnz);
      with_integers(indices, [&](const auto* columns) {
        refuse_indices(matrix, columns, sorted, [&](std::int64_t row) { return begins[row + 1]; });
      });
    });
  } else {
    const std::int64_t width = indices.size(1);
    with_integers(indices, [&](const auto* columns) {
      refuse_indices(matrix, columns, sorted, [&](std::int64_t row) { return (row + 1) * width; });
    });
  }
  if (matrix.slots != nullptr) {
    const at::Tensor slots = matrix.slots->cpu().contiguous();
    refuse_slots(matrix, slots.const_data_ptr<std::int64_t>(), nnz);
  }
  if (matrix.delays != nullptr) refuse_delays(matrix);
  remember(matrix, key);
}

void verify(const StoredMatrix& matrix) {
  const std::optional<MatrixKey> key = MatrixKey::of(matrix);
  if (key && on_the_host().find(*key)) return;
  if (!is_right(matrix)) check_numbers(matrix, /*sorted=*/false);
  remember(matrix, key);
}

bool columns_ascend(const StoredMatrix& matrix) {
  StoredMatrix alone = matrix;
  alone.delays = nullptr;
  alone.ring = 0;
  const std::optional<MatrixKey> key = MatrixKey::of(alone);
  if (!key) return false;
  if (const std::optional<bool> known = ascending().find(*key)) return *known;
  const at::Tensor indices = matrix.indices->contiguous();
  const auto* const columns = indices.const_data_ptr<std::int32_t>();
  const at::Tensor indptr = matrix.indptr == nullptr ? at::Tensor() : matrix.indptr->contiguous();
  std::atomic<bool> ascend = true;
  const auto read = [&](const auto& begin_of) {
    at::parallel_for(0, matrix.rows, 1024, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        if (!never_decreases(columns + begin_of(i), begin_of(i + 1) - begin_of(i))) ascend = false;
    });
  };
  if (indptr.defined())
    with_integers(indptr, [&](const auto* begins) { read([=](std::int64_t i) { return std::int64_t{begins[i]}; }); });
  else
    read([width = indices.size(1)](std::int64_t i) { return i * width; });
  ascending().set(*key, alone, ascend);
  return ascend;
}

}  // namespace spikeforge::ops
