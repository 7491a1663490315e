#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace spikeforge::ops {

inline c10::DispatchKeySet keys_of(at::TensorList list) {
  c10::DispatchKeySet keys;
  for (const at::Tensor& t : list)
    if (t.defined()) keys = keys | t.key_set();
  return keys;
}

// Returns the key whose kernel the dispatcher would call next for arguments with these keys. For operators without
// autocast kernels.
inline c10::DispatchKey next_key_of(c10::DispatchKeySet of_arguments) {
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  const c10::DispatchKeySet requested =
      ((of_arguments | local.included_) - local.excluded_ - c10::autocast_dispatch_keyset)
          .remove(c10::DispatchKey::BackendSelect);
  return requested.highestPriorityTypeId();
}

}  // namespace spikeforge::ops
