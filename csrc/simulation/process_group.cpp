#include <spikeforge/simulation/internal/named_group.h>

#include <c10/util/Exception.h>

#if defined(SPIKEFORGE_WITH_DISTRIBUTED)
#include <spikeforge/simulation/process_group.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

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
    std::vector<at::Tensor> from{own.view(-1)}, to{all.view(-1)};
    c10d::AllgatherOptions options;
    options.asyncOp = false;  // on the current stream
    // A group that is written in Python has the second alone.
    const auto work = own.is_cuda() ? group_->_allgather_base(to[0], from[0], options)
                                    : group_->allgather_into_tensor_coalesced(to, from, options);
    if (work) work->wait();
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
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
