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
  std::vector<void*> of_rank;  // as this rank's GPU sees it; empty where GPUs do not reach one another
};

class SPIKEFORGE_API Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  virtual ~Ranks() = default;

  virtual std::int64_t rank() const = 0;  // this process, from 0 on
  virtual std::int64_t size() const = 0;

  // all[r] becomes what rank r gives as `own`, of the same shape, dtype and kind of device on all; all is
  // [size(), *shape of own], and both are contiguous. On a GPU it is done in the order of the current stream.
  virtual void all_gather(const at::Tensor& own, const at::Tensor& all) = 0;

  // So much of each rank's GPU, for as long as `own` lives. Ranks of one host call it together.
  virtual SharedMemory share_memory(std::int64_t /*bytes*/, c10::Device /*device*/) { return {}; }

  // How long to wait for a rank that does not come.
  virtual std::chrono::milliseconds patience() const { return std::chrono::minutes(10); }
};

}  // namespace spikeforge
