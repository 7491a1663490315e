#include "csrc/simulation/internal/large_pages.h"
#include "ops/common/result_memory.h"

#include <ATen/EmptyTensor.h>

#include <optional>

namespace spikeforge::simulation {

at::Tensor in_large_pages(const at::Tensor& t) {
  if (!t.is_cpu()) return t;
  const at::Tensor moved =
      at::detail::empty_generic(t.sizes(), ops::result_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                t.scalar_type(), /*memory_format_opt=*/std::nullopt);
  return moved.copy_(t);
}

}  // namespace spikeforge::simulation
