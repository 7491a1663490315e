// Guards the calls of a network: records whether a failure left its state incomplete, and reports failures to the other
// ranks.
#pragma once

#include "csrc/simulation/internal/host_exchange.h"
#include "csrc/simulation/internal/notices.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spikeforge::simulation {

class CallGuard {
 public:
  // `number` identifies the network on all ranks.
  CallGuard(const Description& description, std::int64_t number);

  Ranks* ranks() const { return ranks_.get(); }  // null for one process
  const std::shared_ptr<Ranks>& shared_by() const { return ranks_; }
  bool is_shared() const { return exchange_.has_value(); }
  Exchange& exchange() { return *exchange_; }
  void make_exchange(const Description& description);  // does nothing without ranks

  // Throws c10::Error if a failure within a step left the tensors in an inconsistent state.
  void check_is_whole() const;
  // Also sends an unsent failure to the other ranks, which make the same call and throw.
  void check_is_whole(Topic topic);
  bool is_whole() const { return is_whole_; }
  void set_whole() { is_whole_ = true; }

  // Returns the values of all ranks at the beginning of a call (notices.h), or those of this process without ranks.
  std::vector<Numbers> gather_notices(Topic topic, const std::function<Numbers()>& prepare);
  void join(Topic topic, std::int64_t most, const at::Tensor& whole, const at::Tensor& own, const at::Tensor& places);

  // Calls f, which runs steps. If it throws, the other ranks receive a message, and the network is in the middle of a
  // step unless set_between_steps(true) was called last.
  template <class F> auto take_steps(F&& f) {
    is_between_steps_ = true;
    others_throw_too_ = false;
    awaited_ = 0;
    if (exchange_) exchange_->expect(0, 0);
    try {
      return f();
    } catch (...) {
      fail();
      throw;
    }
  }
  void set_between_steps(bool is) { is_between_steps_ = is; }
  // Marks the end of a step. The other ranks are only guaranteed to be at the same step after the last step of a call.
  void end_step(bool is_last) { is_between_steps_ = is_last || ranks_ == nullptr; }
  bool is_between_steps() const { return is_between_steps_; }
  bool& others_throw_too() { return others_throw_too_; }

  // Sets the number of exchanges by gather_spikes that follow: the other ranks wait for the spikes of each step.
  void expect(std::int64_t steps) { awaited_ = ranks_ != nullptr && device_.is_cpu() ? steps : 0; }
  // Gathers a byte for each neuron of each rank: [ranks, 1 + the most neurons of a rank]. The first byte is not 0 if
  // the rank has failed, when `own` is not defined.
  at::Tensor gather_spikes(const at::Tensor& own);

 private:
  void fail() noexcept;
  void set_not_whole() noexcept;  // called while the exception that is the reason is handled
  void send_unsent_failure(Topic topic);
  bool send_failed_spikes() noexcept;

  const std::shared_ptr<Ranks> ranks_;
  const c10::Device device_;
  const std::int64_t number_;
  bool is_whole_ = true, is_between_steps_ = true;
  std::string why_not_whole_;
  bool others_throw_too_ = false;
  Failure unsent_failure_{};  // the failure of this rank, for its next message
  std::int64_t awaited_ = 0;  // steps by operators for whose spikes the other ranks wait
  std::optional<Exchange> exchange_;
};

}  // namespace spikeforge::simulation
