// Distributes networks over the processes of torch.distributed: gloo on the CPU, NCCL on GPUs.
//
//   auto store = c10::make_intrusive<c10d::FileStore>(path, ranks);
//   auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, options);
//   auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, ranks);
//   group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
//   Network network({.seed = 1, .ranks = ranks_of(group)});
//
// It exists if the library was built with a torch that has torch.distributed.
#pragma once

#include "csrc/base/export.h"
#include "csrc/simulation/ranks.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>

namespace spikeforge {

// Failures of the group, such as the death of another process, are thrown by a network's calls as c10::Error, within
// the group's timeout.
SPIKEFORGE_API std::shared_ptr<Ranks> ranks_of(c10::intrusive_ptr<c10d::ProcessGroup> group);

}  // namespace spikeforge
