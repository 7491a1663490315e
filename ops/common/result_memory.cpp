#include "ops/common/result_memory.h"
#include "csrc/base/environment.h"
#include "csrc/base/fork_safe_mutex.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace spikeforge::ops {

#if defined(__linux__)
namespace {

// The minimum size of results in kept blocks. glibc keeps the pages of smaller results between calls.
constexpr std::size_t large_result = std::size_t{32} << 20;
constexpr std::size_t large_page = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Block {
  char* memory = nullptr;
  std::size_t bytes = 0;
};

// Returns null if there is not enough memory.
Block map(std::size_t bytes) {
  const std::size_t reserved = bytes + large_page;
  void* const raw = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return {};
  auto* const begin = static_cast<char*>(raw);
  const std::size_t before =
      round_up(reinterpret_cast<std::uintptr_t>(begin), large_page) - reinterpret_cast<std::uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, reserved - before - bytes);
  // If the system has no large pages available, the first touch may wait while it creates some.
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return {begin + before, bytes};
}

void unmap(const Block& block) { munmap(block.memory, block.bytes); }

std::size_t most_kept_bytes() {
  if (const auto mebibytes = whole_number_in_environment("SPIKEFORGE_RESULT_CACHE_MB")) return *mebibytes << 20;
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 8;
}

class Blocks {
 public:
  // Returns a kept block of which at most a quarter is unused, or a new block.
  Block take(std::size_t bytes) {
    const std::size_t wanted = round_up(bytes, large_page);
    {
      const std::scoped_lock lock(mutex_);
      auto best = kept_.end();
      for (auto block = kept_.begin(); block != kept_.end(); ++block)
        if (block->bytes >= wanted && block->bytes - wanted <= wanted / 4 &&
            (best == kept_.end() || block->bytes < best->bytes))
          best = block;
      if (best != kept_.end()) {
        const Block found = *best;
        kept_.erase(best);
        kept_bytes_ -= found.bytes;
        return found;
      }
    }
    Block block = map(wanted);
    if (block.memory == nullptr) {
      drop_down_to(0);
      block = map(wanted);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, block.memory != nullptr, "spikeforge: out of memory for a result of ", bytes,
                     " bytes");
    return block;
  }

  void give_back(const Block& block) {
    // Keeps the pages unless the system needs them.
    madvise(block.memory, block.bytes, MADV_FREE);
    {
      const std::scoped_lock lock(mutex_);
      kept_.push_back(block);
      kept_bytes_ += block.bytes;
    }
    drop_down_to(most_bytes_);
  }

 private:
  // Frees the oldest kept blocks first.
  void drop_down_to(std::size_t bytes) {
    std::vector<Block> dropped;
    {
      const std::scoped_lock lock(mutex_);
      auto next = kept_.begin();
      for (; next != kept_.end() && kept_bytes_ > bytes; ++next) kept_bytes_ -= next->bytes;
      dropped.assign(kept_.begin(), next);
      kept_.erase(kept_.begin(), next);
    }
    for (const Block& block : dropped) unmap(block);
  }

  ForkSafeMutex mutex_;
  std::vector<Block> kept_;  // the oldest first
  std::size_t kept_bytes_ = 0;
  const std::size_t most_bytes_ = most_kept_bytes();
};

// Never destroyed: tensors may outlive static objects.
Blocks& blocks() {
  static auto& instance = *new Blocks;
  return instance;
}

void give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  blocks().give_back(*block);
}

class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::Allocator* const plain = c10::GetCPUAllocator();
    if (bytes < large_result || plain != c10::GetDefaultCPUAllocator()) return plain->allocate(bytes);
    auto block = std::make_unique<Block>(blocks().take(bytes));
    char* const memory = block->memory;
    return {memory, block.release(), give_back, c10::Device(c10::kCPU)};
  }

  void copy_data(void* target, const void* source, std::size_t count) const override {
    default_copy_data(target, source, count);
  }
};

}  // namespace

c10::Allocator* result_allocator() {
  static ResultAllocator allocator;
  return &allocator;
}

#else

c10::Allocator* result_allocator() { return c10::GetCPUAllocator(); }

#endif

}  // namespace spikeforge::ops
