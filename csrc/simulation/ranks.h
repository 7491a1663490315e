// The processes that share a network, and how they tell one another what they have. process_group.h makes one of a
// process group of torch.distributed.
#pragma once

#include <spikeforge/base/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace spikeforge {

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
};

}  // namespace spikeforge
