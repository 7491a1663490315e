// Autocast for the arguments of a product, before autograd records them, as for torch's own products.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace spikeforge::ops::layers {

// During its lifetime, calls are dispatched below autocast.
struct Lowering {
  explicit Lowering(const at::Tensor& x)
      : device(x.device().type()),
        type(at::autocast::get_autocast_dtype(device)),
        guard(c10::autocast_dispatch_keyset) {}

  at::Tensor operator()(const at::Tensor& t) const { return at::autocast::cached_cast(type, t, device); }
  std::optional<at::Tensor> operator()(const std::optional<at::Tensor>& t) const {
    return at::autocast::cached_cast(type, t, device);
  }

  c10::DeviceType device;
  c10::ScalarType type;
  c10::impl::ExcludeDispatchKeyGuard guard;
};

}  // namespace spikeforge::ops::layers
