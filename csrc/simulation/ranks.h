// The processes that share a network, and their communication. process_group.h creates one from a process group of
// torch.distributed.
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace spikeforge {

// Memory of a GPU that the GPUs of other ranks read and write.
struct SharedMemory {
  at::Tensor own;              // uint8, zeros at first
  std::vector<void*> of_rank;  // addresses on this rank's GPU; empty without peer access
};

class SPIKEFORGE_API Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  virtual ~Ranks() = default;

  virtual std::int64_t rank() const = 0;  // the rank of this process, from 0 on
  virtual std::int64_t size() const = 0;

  // Copies `own` of rank r to all[r]. `own` has the same shape, dtype and kind of device on all ranks; `all` is
  // [size(), *shape of own], and both are contiguous. On a GPU it runs on the current stream.
  virtual void all_gather(const at::Tensor& own, const at::Tensor& all) = 0;

  // Allocates this number of bytes on each rank's GPU, during the lifetime of `own`. A collective call of ranks on one
  // host.
  virtual SharedMemory share_memory(std::int64_t /*bytes*/, c10::Device /*device*/) { return {}; }

  // The timeout for a rank that does not arrive.
  virtual std::chrono::milliseconds patience() const { return std::chrono::minutes(10); }
};

}  // namespace spikeforge
