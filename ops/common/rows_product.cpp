#include "ops/common/rows_product.h"
#include "ops/common/library.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

namespace spikeforge::ops {
namespace {

SPIKEFORGE_SCHEMAS(library) { library.def("rows_product(Tensor a, Tensor b) -> Tensor"); }

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_VALUE(
      a.dim() > 0 && a.dim() == b.dim() && a.sym_sizes().slice(0, a.dim() - 1) == b.sym_sizes().slice(0, b.dim() - 1),
      "rows_product: a and b must have the same shape except for the last dimension, but have ", a.sym_sizes(), " and ",
      b.sym_sizes());
  return at::mm(in_rows(a).t(), in_rows(b));
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl("rows_product", TORCH_FN(product)); }

// For differentiable calls, the product consists of torch's operators.
SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("rows_product", torch::autograd::autogradNotImplementedFallback());
}

bool is_of_subclass(const at::Tensor& t) { return t.key_set().has(c10::DispatchKey::Python); }

}  // namespace

at::Tensor in_rows(const at::Tensor& t) {
  c10::SymInt rows = 1;
  for (std::int64_t d = 0; d + 1 < t.dim(); ++d) rows = rows * t.sym_size(d);
  return t.reshape_symint({rows, t.sym_size(-1)});
}

at::Tensor rows_product(const at::Tensor& a, const at::Tensor& b) {
  // Rows on several devices are not a matrix, so a tensor subclass computes the product itself.
  if (at::GradMode::is_enabled() || !(is_of_subclass(a) || is_of_subclass(b))) return product(a, b);
  static const auto handle =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("spikeforge::rows_product");
  return handle.call(a, b);
}

}  // namespace spikeforge::ops
