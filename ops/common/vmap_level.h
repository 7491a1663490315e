// The innermost torch.vmap of a call, for the operators' batching rules.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/stack.h>
#include <c10/core/SymInt.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace spikeforge::ops {

// For its kernel the tensors inside are plain.
class VmapLevel {
 public:
  // Of a call with these tensors, maybe optional ones.
  template <class... T>
  explicit VmapLevel(const T&... tensors) {
    (find(tensors), ...);
  }

  // Of all levels in a call the innermost has the highest number.
  void find(const at::Tensor& t) {
    const auto* const batched = at::functorch::maybeGetBatchedImpl(t);
    if (batched == nullptr || batched->level() <= id_) return;
    id_ = batched->level();
    size_ = batched->value().sym_size(batched->bdim());
  }
  void find(const std::optional<at::Tensor>& t) {
    if (t.has_value()) find(*t);
  }

  bool maps(const at::Tensor& t) const { return of(t) != nullptr; }
  bool maps(const std::optional<at::Tensor>& t) const { return t.has_value() && maps(*t); }

  // With the mapped dimension, if it has it, as the first one.
  at::Tensor first(const at::Tensor& t) const {
    const auto* const batched = of(t);
    return batched ? batched->value().movedim(batched->bdim(), 0) : t;
  }
  // That of map i.
  at::Tensor one(const at::Tensor& t, std::int64_t i) const { return maps(t) ? first(t).select(0, i) : t; }
  std::optional<at::Tensor> one(const std::optional<at::Tensor>& t, std::int64_t i) const {
    return t.has_value() ? std::optional(one(*t, i)) : std::nullopt;
  }

  // A result whose mapped dimension is at `place`.
  at::Tensor mapped(const at::Tensor& t, std::int64_t place = 0) const {
    return at::functorch::makeBatched(t, place, id_);
  }

  // The results f(i) of all maps, one by one.
  template <class F>
  at::Tensor each(F&& f) const {
    std::vector<at::Tensor> results;
    const std::int64_t count = size_.guard_int(__FILE__, __LINE__);
    for (std::int64_t i = 0; i < count; ++i) results.push_back(f(i));
    return mapped(at::stack(results));
  }

  const c10::SymInt& size() const { return size_; }

 protected:
  // Null where t is the same for all.
  const at::functorch::BatchedTensorImpl* of(const at::Tensor& t) const {
    const auto* const batched = at::functorch::maybeGetBatchedImpl(t);
    return batched != nullptr && batched->level() == id_ ? batched : nullptr;
  }

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::FuncTorchBatched};
  std::int64_t id_ = -1;
  c10::SymInt size_ = 1;
};

}  // namespace spikeforge::ops
