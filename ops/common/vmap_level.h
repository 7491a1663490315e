// The innermost torch.vmap of a call, for the operators' batching rules.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/stack.h>
#include <c10/core/SymInt.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

namespace spikeforge::ops {

// The innermost vmap level of a call. Its kernel operates on the plain tensors inside the batched ones.
class VmapLevel {
 public:
  // Finds the level of a call with these tensors, some of which are optional.
  template <class... T> explicit VmapLevel(const T&... tensors) { (find(tensors), ...); }

  // The innermost level of a call has the highest number.
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

  // Returns t with the mapped dimension, if any, as its first dimension.
  at::Tensor first(const at::Tensor& t) const {
    const auto* const batched = of(t);
    return batched ? batched->value().movedim(batched->bdim(), 0) : t;
  }
  // Returns the slice of t for map i.
  at::Tensor one(const at::Tensor& t, std::int64_t i) const { return maps(t) ? first(t).select(0, i) : t; }
  std::optional<at::Tensor> one(const std::optional<at::Tensor>& t, std::int64_t i) const {
    return t.has_value() ? std::optional(one(*t, i)) : std::nullopt;
  }

  // Wraps a result whose mapped dimension is at `place`.
  at::Tensor mapped(const at::Tensor& t, std::int64_t place = 0) const {
    return at::functorch::makeBatched(t, place, id_);
  }

  // Returns t with the mapped dimension at `place`; t is expanded if it is not mapped.
  at::Tensor folded(const at::Tensor& t, std::int64_t place) const {
    if (!t.defined()) return t;
    if (const auto* const batched = of(t)) return batched->value().movedim(batched->bdim(), place);
    c10::SymDimVector sizes(t.sym_sizes());
    sizes.insert(sizes.begin() + place, size_);
    return t.unsqueeze(place).expand_symint(sizes);
  }

  // The same with the second place, after time.
  at::Tensor second(const at::Tensor& t) const { return folded(t, 1); }
  std::optional<at::Tensor> second(const std::optional<at::Tensor>& t) const {
    return t.has_value() ? std::optional(second(*t)) : std::nullopt;
  }

  // Stacks the results f(i) of all maps, or each entry of lists of results.
  template <class F> auto each(F&& f) const {
    std::vector<decltype(f(0))> results;
    const std::int64_t count = size_.guard_int(__FILE__, __LINE__);
    TORCH_CHECK_VALUE(count > 0, "vmap: the mapped dimension must have at least 1 element here, but has none");
    for (std::int64_t i = 0; i < count; ++i) results.push_back(f(i));
    if constexpr (std::is_same_v<decltype(f(0)), at::Tensor>) {
      return mapped(at::stack(results));
    } else {
      std::vector<at::Tensor> list, of_maps(results.size());
      for (std::size_t k = 0; k < results[0].size(); ++k) {
        for (std::size_t i = 0; i < results.size(); ++i) of_maps[i] = results[i][k];
        list.push_back(mapped(at::stack(of_maps)));
      }
      return list;
    }
  }

  const c10::SymInt& size() const { return size_; }

 private:
  // Returns null if t is the same for all maps.
  const at::functorch::BatchedTensorImpl* of(const at::Tensor& t) const {
    const auto* const batched = at::functorch::maybeGetBatchedImpl(t);
    return batched != nullptr && batched->level() == id_ ? batched : nullptr;
  }

  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::FuncTorchBatched};
  std::int64_t id_ = -1;
  c10::SymInt size_ = 1;
};

}  // namespace spikeforge::ops
