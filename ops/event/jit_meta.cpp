#include <spikeforge/ops/event/jit.h>

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

at::Tensor jit_product_meta(const at::Tensor& weights, const at::Tensor& x, c10::SymInt rows, c10::SymInt cols,
                            double prob, std::int64_t seed, c10::string_view law, bool transpose, bool matrix,
                            c10::string_view values, bool deterministic) {
  const auto [form, draw] =
      parse_jit(std::move(rows), std::move(cols), prob, seed, law, transpose, matrix, values, deterministic);
  check_jit(weights, x, form, draw);
  return at::empty_symint(result_sizes(x, form), weights.options());
}

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) { library.impl("jit_product", TORCH_FN(jit_product_meta)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
