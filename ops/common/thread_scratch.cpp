#include "ops/common/thread_scratch.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <memory>

namespace spikeforge::ops {

void* thread_scratch(std::size_t bytes) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<void, Free> memory;
  thread_local std::size_t size = 0;
  if (bytes > size) {
    size = 0;
    memory.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    TORCH_CHECK(memory != nullptr, "spikeforge: out of memory for ", bytes, " bytes of scratch");
    size = bytes;
  }
  return memory.get();
}

}  // namespace spikeforge::ops
