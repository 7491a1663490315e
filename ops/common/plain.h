// Tensors whose memory holds their values in order.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace spikeforge::ops {

// Also false for a lazily negated or conjugated tensor, and for a zero tensor, which may have no memory.
inline bool is_plain(const at::Tensor& t) {
  return t.is_contiguous() && !t.is_neg() && !t.is_conj() && !t._is_zerotensor();
}

inline at::Tensor plain(const at::Tensor& t) {
  if (t._is_zerotensor()) return at::zeros(t.sizes(), t.options());
  return t.resolve_conj().resolve_neg().contiguous();
}

}  // namespace spikeforge::ops
