#include "ops/common/thread_scratch.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <memory>

namespace spikeforge::ops {
namespace {

class ThreadScratch {
 public:
  void* get(std::size_t bytes) {
    if (bytes > size_) {
      size_ = 0;
      memory_.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
      TORCH_CHECK(memory_ != nullptr, "spikeforge: out of memory for ", bytes, " bytes of scratch");
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace

void* thread_scratch(std::size_t bytes) {
  thread_local ThreadScratch scratch;
  return scratch.get(bytes);
}

}  // namespace spikeforge::ops
