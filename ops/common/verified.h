// Stored matrices whose indices were checked: each matrix is read for that once, and not at every call.
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
// 0, never decreases and ends with their number; slots, if present, are in [0, that number); delays in [0, ring).
struct StoredMatrix {
  const char* op = nullptr;             // begins messages
  const at::Tensor* indices = nullptr;  // int32 or int64: [nnz], or in ELL form [rows, width]
  const at::Tensor* indptr = nullptr;   // int32 or int64 [rows + 1]; null in ELL form
  const at::Tensor* slots = nullptr;    // int64 [nnz], or null
  const at::Tensor* delays = nullptr;   // uint8 or int32: [nnz], one, or null
  std::int64_t rows = 0, cols = 0;
  std::int64_t ring = 0;                 // slots of spikes in flight
  const char* indices_name = "indices";  // in messages
  const char* indptr_name = "indptr";
  const char* cols_name = "cols";
};

// The kernel that checks it on a GPU: a pack holds it with the kernels of a call.
event::KernelSpec check_kernel(const StoredMatrix& matrix);

// Reads the matrix, from a GPU through a copy. Throws ValueError for the first illegal number, or with `sorted` for
// columns of a row that decrease. A matrix that passes is remembered.
void check_numbers(const StoredMatrix& matrix, bool sorted);

// The same for a matrix on the CPU, unless it is remembered. A matrix is forgotten where one of its tensors changed or
// died. A change that torch does not count is not seen here either (numpy, .data, running statistics of batch_norm). A
// tensor of inference mode has no version, and is read at every call.
void verify(const StoredMatrix& matrix);

// True if the columns of no row of a matrix on the CPU decrease, which is remembered too; false if it could not be.
bool columns_ascend(const StoredMatrix& matrix);

// The same for a matrix on a GPU, without waiting for it: what is not remembered is checked by a kernel on the current
// stream, and what it found is thrown at a later call. Until that is known, kernels of the matrix leave as soon as this
// word of the device's memory is not 0; null where it is known. While a CUDA graph is captured nothing is checked that
// is not remembered.
const unsigned* verify_on_gpu(const StoredMatrix& matrix);

// Without a branch, so that the numbers are read in vectors.
template <class Index> bool never_decreases(const Index* numbers, std::int64_t n) {
  bool decreases = false;
  for (std::int64_t i = 0; i + 1 < n; ++i) decreases |= numbers[i] > numbers[i + 1];
  return !decreases;
}

// ---- the memory of both ----

struct MatrixKey;
void remember_on_gpu(const StoredMatrix& matrix, const MatrixKey& key);

// Identifies the contents of a matrix, also if other contents are later stored in the same place.
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

  // std::nullopt if a change of the contents could not be detected.
  static std::optional<MatrixKey> of(const StoredMatrix& matrix);
};

struct HashOfMatrixKey {
  std::size_t operator()(const MatrixKey& key) const;
};

// Bounded, and keeps no numbers alive. A storage is held weakly, so that no other can have its address.
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
