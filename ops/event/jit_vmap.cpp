// torch.vmap of products with a matrix that is drawn: mapped entries are one more leading dimension; weights that are
// mapped are taken one by one.
#include <spikeforge/ops/event/jit.h>
#include <spikeforge/ops/event/vmap_level.h>

#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

at::Tensor jit_product_batched(const at::Tensor& weights, const at::Tensor& x, c10::SymInt rows, c10::SymInt cols,
                               double prob, std::int64_t seed, c10::string_view law, bool transpose, bool matrix,
                               c10::string_view values, bool deterministic) {
  const JitCall call =
      parse_jit(std::move(rows), std::move(cols), prob, seed, law, transpose, matrix, values, deterministic);
  const Form& form = call.form;
  const Draw& draw = call.draw;
  Level level;
  for (const at::Tensor& t : {weights, x}) level.find(t);
  if (!level.maps(weights)) return level.mapped(call_jit(weights, level.first(x), form, draw));
  return level.each([&](std::int64_t i) { return call_jit(level.one(weights, i), level.one(x, i), form, draw); });
}

TORCH_LIBRARY_IMPL(spikeforge, FuncTorchBatched, library) {
  library.impl("jit_product", TORCH_FN(jit_product_batched));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
