// The innermost torch.vmap of a call, for the operators' batching rules.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <vector>

namespace spikeforge::ops::sparse {

class Level {
 public:
  // Of all levels in a call the innermost has the highest number.
  void find(const at::Tensor& t) {
    const auto* const batched = at::functorch::maybeGetBatchedImpl(t);
    if (batched == nullptr || batched->level() <= id_) return;
    id_ = batched->level();
    size_ = batched->value().size(batched->bdim());
  }

  bool maps(const at::Tensor& t) const { return of(t) != nullptr; }

  // With the mapped dimension first.
  at::Tensor first(const at::Tensor& t) const {
    const auto* const batched = of(t);
    return batched ? batched->value().movedim(batched->bdim(), 0) : t;
  }
  at::Tensor one(const at::Tensor& t, std::int64_t i) const { return maps(t) ? first(t).select(0, i) : t; }

  at::Tensor mapped(const at::Tensor& t) const { return at::functorch::makeBatched(t, 0, id_); }

  template <class F>
  at::Tensor each(F&& f) const {
    std::vector<at::Tensor> results;
    for (std::int64_t i = 0; i < size_; ++i) results.push_back(f(i));
    return mapped(at::stack(results));
  }

 private:
  const at::functorch::BatchedTensorImpl* of(const at::Tensor& t) const {
    const auto* const batched = at::functorch::maybeGetBatchedImpl(t);
    return batched != nullptr && batched->level() == id_ ? batched : nullptr;
  }

  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::FuncTorchBatched};
  std::int64_t id_ = -1;
  std::int64_t size_ = 1;
};

}  // namespace spikeforge::ops::sparse
