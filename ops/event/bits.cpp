// Events as bits: bit b of word w is set if entry 32 w + b is an event, that is, true or above 0. Bits after the last
// entry are 0.
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/product.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/Exception.h>

namespace spikeforge::ops::sparse {
namespace {

at::Tensor places(const at::Tensor& like) { return at::arange(32, like.options().dtype(at::kInt)); }

at::Tensor pack_events(const at::Tensor& events) {
  TORCH_CHECK_TYPE(events.scalar_type() == c10::ScalarType::Bool || is_supported(events.scalar_type()),
                   "pack_events: events must be bool or floating point, but is ", events.scalar_type());
  TORCH_CHECK_VALUE(events.dim() >= 1, "pack_events: events must have shape [..., n], but is 0-dimensional");
  const at::Tensor is = events.detach().gt(0);
  const c10::SymInt words = (is.sym_size(-1) + 31) / 32;
  const at::Tensor padded = at::constant_pad_nd_symint(is, {0, words * 32 - is.sym_size(-1)}, false);
  c10::SymDimVector sizes(padded.sym_sizes().begin(), padded.sym_sizes().end());
  sizes.back() = words;
  sizes.push_back(32);
  return padded.view_symint(sizes).to(at::kInt).bitwise_left_shift(places(events)).sum({-1}, false, at::kInt);
}

at::Tensor unpack_events(const at::Tensor& packed, c10::SymInt n) {
  TORCH_CHECK_TYPE(packed.scalar_type() == c10::ScalarType::Int, "unpack_events: packed must be int32, but is ",
                   packed.scalar_type());
  TORCH_CHECK_VALUE(n >= 0, "unpack_events: n must not be negative, but is ", n);
  TORCH_CHECK_VALUE(packed.dim() >= 1 && packed.sym_size(-1) == (n + 31) / 32,
                    "unpack_events: packed must have shape [..., ceil(n / 32)] with n = ", n, ", but has ",
                    packed.sym_sizes());
  return unpack(packed, n);
}

SPIKEFORGE_SCHEMAS(library) {
  library.def("pack_events(Tensor events) -> Tensor");
  library.def("unpack_events(Tensor packed, SymInt n) -> Tensor");
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) {
  library.impl("pack_events", TORCH_FN(pack_events));
  library.impl("unpack_events", TORCH_FN(unpack_events));
}

}  // namespace

at::Tensor unpack(const at::Tensor& packed, const c10::SymInt& n) {
  return packed.unsqueeze(-1)
      .bitwise_right_shift(places(packed))
      .bitwise_and(1)
      .ne(0)
      .flatten(-2)
      .slice_symint(-1, 0, n);
}

}  // namespace spikeforge::ops::sparse
