// Networks over the processes of torch.distributed: gloo on the CPU, NCCL on GPUs.
//
//   auto store = c10::make_intrusive<c10d::FileStore>(path, 2);
//   Network network({.seed = 1, .ranks = ranks_of(group)});
//
// Of a torch that has torch.distributed (SPIKEFORGE_WITH_DISTRIBUTED when the library is built).
#pragma once

#include <spikeforge/base/export.h>
#include <spikeforge/simulation/ranks.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>

namespace spikeforge {

// What fails in the group, as the death of another process does, is a c10::DistBackendError or what else its backend
// throws, within its timeout.
SPIKEFORGE_API std::shared_ptr<Ranks> ranks_of(c10::intrusive_ptr<c10d::ProcessGroup> group);

}  // namespace spikeforge
