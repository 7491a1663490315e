// torch.vmap. Entries that are mapped are one more leading dimension. Where weights are mapped there is a matrix for
// each map, and a gradient of weights is one for each map too: those are computed one by one.
#include <spikeforge/ops/event/product.h>
#include <spikeforge/ops/event/vmap_level.h>

#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

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
