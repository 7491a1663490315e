#include "csrc/simulation/internal/notices.h"

#include <c10/util/Exception.h>

#if defined(SPIKEFORGE_WITH_DISTRIBUTED)
#include "csrc/simulation/process_group.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <exception>
#include <string_view>
#include <utility>
#include <vector>
#endif

namespace spikeforge {

#if defined(SPIKEFORGE_WITH_DISTRIBUTED)
namespace {

class ProcessGroupRanks : public Ranks {
 public:
  explicit ProcessGroupRanks(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {}

  std::int64_t rank() const override { return group_->getRank(); }
  std::int64_t size() const override { return group_->getSize(); }

  void all_gather(const at::Tensor& own, const at::Tensor& all) override {
    if (const auto work = gather(own.view(-1), all.view(-1))) work->wait();
  }

  SharedMemory share_memory(std::int64_t bytes, c10::Device device) override {
    SharedMemory memory;
    try {
      const std::string& name = group_->getGroupName();
      memory.own = c10d::symmetric_memory::empty_strided_p2p({bytes}, {1}, at::kByte, device, name, std::nullopt);
      memory.own.zero_();
      memory.own[0].item();  // synchronises before another rank writes
      memory.of_rank = c10d::symmetric_memory::rendezvous(memory.own, name)->get_buffer_ptrs();
    } catch (const std::exception&) {
      return {};
    }
    return memory;
  }

  std::chrono::milliseconds patience() const override {
    try {
      return group_->getDefaultBackend()->getBackendOptions()->timeout;
    } catch (const std::exception&) {  // a group that is implemented in Python has no options
      return Ranks::patience();
    }
  }

 private:
  // On the CPU, a group that is implemented in Python supports only the coalesced form, and a group whose calls torch
  // checks (TORCH_DISTRIBUTED_DEBUG=DETAIL) only the other form.
  c10::intrusive_ptr<c10d::Work> gather(at::Tensor own, at::Tensor all) {
    c10d::AllgatherOptions options;
    options.asyncOp = false;  // on the current stream
    if (own.is_cuda() || !has_coalesced_) return group_->_allgather_base(all, own, options);
    try {
      std::vector<at::Tensor> from{own}, to{all};
      return group_->allgather_into_tensor_coalesced(to, from, options);
    } catch (const c10::Error& error) {
      has_coalesced_ = std::string_view(error.what()).find("does not support") == std::string_view::npos;
      if (has_coalesced_) throw;
    }
    return gather(std::move(own), std::move(all));
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  bool has_coalesced_ = true;
};

}  // namespace

std::shared_ptr<Ranks> ranks_of(c10::intrusive_ptr<c10d::ProcessGroup> group) {
  TORCH_CHECK_VALUE(group.defined(), "ranks_of: there must be a process group");
  return std::make_shared<ProcessGroupRanks>(std::move(group));
}

std::shared_ptr<Ranks> simulation::ranks_of_name(const std::string& name) {
  return ranks_of(c10d::resolve_process_group(name));
}
#else
std::shared_ptr<Ranks> simulation::ranks_of_name(const std::string&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "Network: a group is given, but this library was built with a torch that has no torch.distributed");
}
#endif

}  // namespace spikeforge
