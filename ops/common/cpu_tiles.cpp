#include <spikeforge/ops/common/cpu_tiles.h>

#include <cstdlib>
#include <memory>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace spikeforge::ops {
namespace {

// Neurons times steps for which a further thread is woken. LIF, T=16, one thread and two, in microseconds: N=2^12 16
// and 14 in inference, 117 and 106 in training, N=2^13 28 and 17, 186 and 142; T=1000, N=128 28 and 44, 152 and 176.
constexpr std::int64_t least_share = 65536;
constexpr std::int64_t granule = 64;

// Bytes from which a result asks for large pages: glibc keeps the pages of smaller ones from call to call. LIF, T=16,
// N=2^20 (64 MiB) by the default malloc, in copies of as many bytes: inference 7.2 without and 1.9 to 2.7 with them,
// training 7.5 and 2.0. Where memory is fragmented, the first calls wait for the system to make large pages: 0.15 s for
// 64 MiB.
constexpr std::size_t large_result = std::size_t{32} << 20;

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

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Tiles tiles_of(std::int64_t neurons, std::int64_t steps, std::int64_t largest) {
  if (neurons == 0) return {0, granule, 0, true};
  const std::int64_t threads =
      std::clamp<std::int64_t>(neurons * std::max<std::int64_t>(steps, 1) / least_share, 1, at::get_num_threads());
  const std::int64_t share = ceil_divide(neurons, threads);
  const std::int64_t size = ceil_divide(ceil_divide(share, ceil_divide(share, largest)), granule) * granule;
  return {neurons, std::min(size, neurons), ceil_divide(neurons, size), threads == 1};
}

void* thread_scratch(std::size_t bytes) {
  thread_local ThreadScratch scratch;
  return scratch.get(bytes);
}

void want_large_pages(const at::Tensor& result) {
#if defined(MADV_HUGEPAGE)
  if (!result.defined() || result.nbytes() < large_result) return;
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const first = static_cast<char*>(result.mutable_data_ptr());
  const std::size_t skipped = (page - reinterpret_cast<std::uintptr_t>(first) % page) % page;
  madvise(first + skipped, (result.nbytes() - skipped) / page * page, MADV_HUGEPAGE);
#endif
}

}  // namespace spikeforge::ops
