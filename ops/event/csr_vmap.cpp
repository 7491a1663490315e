// torch.vmap. Entries that are mapped are one more leading dimension. Where weights are mapped there is a matrix for
// each map, and a gradient of weights is one for each map too: those are computed one by one.
#include <spikeforge/ops/event/product.h>

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <vector>

namespace spikeforge::ops::sparse {
namespace {

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

std::optional<at::Tensor> one(const Level& level, const std::optional<at::Tensor>& t, std::int64_t i) {
  return t.has_value() ? std::optional(level.one(*t, i)) : std::nullopt;
}

at::Tensor product_batched(const at::Tensor& weights, const at::Tensor& indices,
                           const std::optional<at::Tensor>& indptr, const at::Tensor& x, c10::SymInt rows,
                           c10::SymInt cols, bool transpose, bool matrix, c10::string_view values, bool deterministic) {
  const Form form{std::move(rows), std::move(cols), transpose, matrix, parse_values(values), deterministic};
  Level level;
  for (const at::Tensor& t : {weights, indices, x}) level.find(t);
  if (indptr.has_value()) level.find(*indptr);
  const bool one_matrix = !level.maps(weights) && !level.maps(indices) && !(indptr.has_value() && level.maps(*indptr));
  if (one_matrix) return level.mapped(call_product(weights, indices, indptr, level.first(x), form));
  return level.each([&](std::int64_t i) {
    return call_product(level.one(weights, i), level.one(indices, i), one(level, indptr, i), level.one(x, i), form);
  });
}

at::Tensor weight_grad_batched(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& indices,
                               const std::optional<at::Tensor>& indptr, c10::SymInt rows, c10::SymInt cols,
                               bool transpose, bool matrix, c10::string_view values) {
  const Form form{std::move(rows), std::move(cols), transpose, matrix, parse_values(values), false};
  Level level;
  for (const at::Tensor& t : {x, grad, indices}) level.find(t);
  if (indptr.has_value()) level.find(*indptr);
  return level.each([&](std::int64_t i) {
    return call_weight_grad(level.one(x, i), level.one(grad, i), level.one(indices, i), one(level, indptr, i), form);
  });
}

TORCH_LIBRARY_IMPL(spikeforge, FuncTorchBatched, library) {
  library.impl("csr_product", TORCH_FN(product_batched));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_batched));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
