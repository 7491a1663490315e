// The innermost torch.vmap of a call, for the operators' batching rules.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/SymInt.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace spikeforge::ops {

// For its kernel the tensors inside are plain.
class VmapLevel {
 public:
  // Of all levels in a call the innermost has the highest number.
  void find(const at::Tensor& t) {
    const auto* const batched = at::functorch::maybeGetBatchedImpl(t);
    if (batched == nullptr || batched->level() <= id_) return;
    id_ = batched->level();
    size_ = batched->value().sym_size(batched->bdim());
  }

  bool maps(const at::Tensor& t) const { return of(t) != nullptr; }

  // A result whose mapped dimension is at `place`.
  at::Tensor mapped(const at::Tensor& t, std::int64_t place) const { return at::functorch::makeBatched(t, place, id_); }

 protected:
  // Null where t is the same for all.
  const at::functorch::BatchedTensorImpl* of(const at::Tensor& t) const {
    const auto* const batched = at::functorch::maybeGetBatchedImpl(t);
    return batched != nullptr && batched->level() == id_ ? batched : nullptr;
  }

  const c10::SymInt& size() const { return size_; }

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::FuncTorchBatched};
  std::int64_t id_ = -1;
  c10::SymInt size_ = 1;
};

}  // namespace spikeforge::ops
