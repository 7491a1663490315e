#include "csrc/simulation/internal/call_guard.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <new>
#include <utility>

namespace spikeforge::simulation {
namespace {

// Describes the exception that is being handled.
std::string reason() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace

CallGuard::CallGuard(const Description& description, std::int64_t number)
    : ranks_(description.ranks() > 1 ? description.options.ranks : nullptr),
      device_(description.options.device),
      number_(number) {}

void CallGuard::make_exchange(const Description& description) {
  if (ranks_ != nullptr) exchange_.emplace(ranks_, description);
}

void CallGuard::check_is_whole() const {
  TORCH_CHECK(is_whole_, "Network: an earlier call failed in the middle of its steps (", why_not_whole_,
              "), and this network's state is incomplete: load a saved state (load_state_dict, or "
              "load_state in C++), or build the network again");
}

void CallGuard::set_not_whole() noexcept {
  is_whole_ = false;
  try {
    why_not_whole_ = reason();
  } catch (const std::exception&) {
    why_not_whole_ = "out of memory";
  }
}

void CallGuard::fail() noexcept {
  const bool sends = ranks_ != nullptr && !others_throw_too_;
  const bool is_sent = sends && (exchange_->send_failure() || send_failed_spikes());
  if (sends && !is_sent) unsent_failure_ = is_between_steps_ ? Failure::between_steps : Failure::within_step;
  if (is_sent || !is_between_steps_) set_not_whole();
}

void CallGuard::send_unsent_failure(Topic topic) {
  const Failure unsent = std::exchange(unsent_failure_, Failure::none);
  if (unsent != Failure::none) send_failure(*ranks_, {topic, number_}, device_, unsent);
}

// Also sends an unsent failure to the other ranks, which make the same call and throw.
void CallGuard::check_is_whole(Topic topic) {
  if (!is_whole_) send_unsent_failure(topic);
  check_is_whole();
}

std::vector<Numbers> CallGuard::gather_notices(Topic topic, const std::function<Numbers()>& prepare) {
  if (ranks_ == nullptr) return {prepare()};
  // load_state, which ends a failure, may follow it, and so may counting connections, which load_state_dict does first.
  const bool mends = topic == Topic::load_state || topic == Topic::connections;
  if (!mends) send_unsent_failure(topic);
  const Notice notice{topic, number_, std::exchange(unsent_failure_, Failure::none)};
  try {
    Notices all = simulation::gather_notices(*ranks_, notice, device_, prepare);
    if (is_whole_ && all.failure == Failure::within_step) {
      is_whole_ = false;
      why_not_whole_ = "another rank failed";
    }
    return std::move(all.numbers);
  } catch (const RankFailed& failed) {
    others_throw_too_ = true;
    if (failed.failure == Failure::within_step) set_not_whole();
    throw;
  } catch (...) {
    others_throw_too_ = true;
    throw;
  }
}

void CallGuard::join(Topic topic, std::int64_t most, const at::Tensor& whole, const at::Tensor& own,
                     const at::Tensor& places) {
  others_throw_too_ = true;  // gather_notices reports failures of a single rank
  simulation::join(
      *ranks_, topic, most, whole,
      [&] {
        return Share{own, places};
      },
      [&](const std::function<Numbers()>& prepare) { return gather_notices(topic, prepare); });
  others_throw_too_ = false;
}

// Gathers a byte for each neuron of each rank: [ranks, 1 + the most neurons of a rank]. The first byte is not 0 if the
// rank has failed, when `own` is not defined.
at::Tensor CallGuard::gather_spikes(const at::Tensor& own) {
  const std::int64_t most = std::max<std::int64_t>(exchange_->most_neurons(), 1);
  const auto bytes = at::TensorOptions(at::kByte).device(device_);
  const at::Tensor sent = at::zeros({1 + most}, bytes);
  at::Tensor all = at::empty({ranks_->size(), 1 + most}, bytes);
  if (own.defined())
    sent.slice(0, 1, 1 + own.numel()).copy_(own);
  else
    sent.slice(0, 0, 1).fill_(1);
  if (awaited_ > 0) --awaited_;
  others_throw_too_ = true;
  all_gather(*ranks_, sent, all, "the spikes");
  return all;
}

bool CallGuard::send_failed_spikes() noexcept {
  if (awaited_ == 0) return false;
  try {
    gather_spikes({});
  } catch (const std::exception&) {  // the other ranks time out
  }
  return true;
}

}  // namespace spikeforge::simulation
