// A cache of stored matrices whose indices were checked, so that a matrix is checked once, and not in every call.
#pragma once

#include "csrc/base/fork_safe_mutex.h"
#include "csrc/kernels/event/spec.h"

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace spikeforge::ops {

// The conditions that kernels require of a matrix [rows, cols] in memory: indices are in [0, cols); indptr begins with
// 0, never decreases and ends with nnz; slots, if present, are in [0, nnz); delays are in [0, ring).
struct StoredMatrix {
  const char* op = nullptr;             // the prefix of messages
  const at::Tensor* indices = nullptr;  // int32 or int64: [nnz], or in ELL form [rows, width]
  const at::Tensor* indptr = nullptr;   // int32 or int64 [rows + 1]; null in ELL form
  const at::Tensor* slots = nullptr;    // int64 [nnz], or null
  const at::Tensor* delays = nullptr;   // uint8 or int32: [nnz], one, or null
  std::int64_t rows = 0, cols = 0;
  std::int64_t ring = 0;                 // slots of spikes in flight
  const char* indices_name = "indices";  // the name in messages
  const char* indptr_name = "indptr";
  const char* cols_name = "cols";
};

// Returns the kernel that checks the matrix on a GPU, for kernel packs.
event::KernelSpec check_kernel(const StoredMatrix& matrix);

// Checks the matrix, through a copy if it is on a GPU. Throws ValueError for the first illegal value, or with `sorted`
// for decreasing columns in a row. A matrix that passes is remembered.
void check_numbers(const StoredMatrix& matrix, bool sorted);

// The same for a matrix on the CPU, unless it is remembered. A matrix is forgotten if one of its tensors is changed or
// freed. Changes that do not increment torch's version counter are not detected (numpy, .data, running statistics of
// batch_norm). An inference tensor has no version, and is checked in every call.
void verify(const StoredMatrix& matrix);

// True if no row of a matrix on the CPU has decreasing columns, which is remembered too; false if it cannot be
// remembered.
bool columns_ascend(const StoredMatrix& matrix);

// Checks a matrix on a GPU without synchronisation: if it is not remembered, a kernel on the current stream checks it,
// and an error is thrown in a later call. Returns null if the result is known; otherwise a word of device memory, and
// kernels that use the matrix exit if it is not 0. While a CUDA graph is captured, matrices that are not remembered are
// not checked.
const unsigned* verify_on_gpu(const StoredMatrix& matrix);

// Without a branch, so that the numbers are read in vectors.
template <class Index> bool never_decreases(const Index* numbers, std::int64_t n) {
  bool decreases = false;
  for (std::int64_t i = 0; i + 1 < n; ++i) decreases |= numbers[i] > numbers[i + 1];
  return !decreases;
}

// ---- cache of verified matrices ----

struct MatrixKey;
void remember_on_gpu(const StoredMatrix& matrix, const MatrixKey& key);

// Identifies the contents of a matrix, even if other contents are later stored at the same address.
struct MatrixKey {
  static constexpr std::size_t most_dims = 2;
  struct Numbers {
    const void* storage = nullptr;
    const void* data = nullptr;
    std::int64_t type = 0, version = 0;
    std::array<std::int64_t, most_dims> sizes{}, strides{};
    bool operator==(const Numbers&) const = default;
  };
  std::array<Numbers, 4> tensors{};
  std::int64_t rows = 0, cols = 0, ring = 0;
  bool operator==(const MatrixKey&) const = default;

  // Returns std::nullopt if a change of the contents could not be detected.
  static std::optional<MatrixKey> of(const StoredMatrix& matrix);
};

struct HashOfMatrixKey {
  std::size_t operator()(const MatrixKey& key) const;
};

// A bounded cache that does not extend the lifetime of tensors. It holds weak references to storages, so that their
// addresses are not reused.
template <class Value> class MatrixMemory {
 public:
  std::optional<Value> find(const MatrixKey& key) const {
    const std::scoped_lock lock(mutex_);
    const auto found = entries_.find(key);
    return found == entries_.end() ? std::nullopt : std::optional(found->second.value);
  }

  void set(const MatrixKey& key, const StoredMatrix& matrix, Value value) {
    Entry entry{{}, std::move(value)};
    std::size_t i = 0;
    for (const at::Tensor* const t : {matrix.indices, matrix.indptr, matrix.slots, matrix.delays})
      if (t != nullptr) entry.storages.at(i++) = Storage(t->storage().getWeakStorageImpl());
    const std::scoped_lock lock(mutex_);
    if (entries_.size() >= limit_) {
      std::erase_if(entries_, [](const auto& item) { return item.second.is_dead(); });
      if (entries_.size() >= most) entries_.clear();
      limit_ = std::min(most, 2 * entries_.size() + least);
    }
    entries_.insert_or_assign(key, std::move(entry));
  }

 private:
  static constexpr std::size_t least = 64, most = 4096;  // entries
  using Storage = std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>>;
  struct Entry {
    std::array<Storage, 4> storages;
    Value value;
    bool is_dead() const {
      for (const Storage& storage : storages)
        if (storage && storage->expired()) return true;
      return false;
    }
  };

  mutable ForkSafeMutex mutex_;
  std::unordered_map<MatrixKey, Entry, HashOfMatrixKey> entries_;
  std::size_t limit_ = least;
};

}  // namespace spikeforge::ops
