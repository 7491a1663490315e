// Messages between ranks other than spikes. They are short and rare.
//
// Before any other message of a call, each rank sends a notice of the call that it makes. Notices of all calls have the
// same length: ranks that make different calls detect it and raise an error. With messages of different lengths, gloo
// would terminate the process. A rank that cannot continue sends its failure in a message of the length that the other
// ranks expect: then all ranks throw, and the next message of each is a notice again.
#pragma once

#include "csrc/simulation/ranks.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace spikeforge::simulation {

// The topic of a call, in the order of the words in notices.cpp.
enum class Topic : std::int64_t {
  build,
  delays,
  built,
  shared_memory,
  connections,
  simulate,
  recorded_states,
  state,
  load_state,
  gather
};

// `between_steps`: the rank is in the state after a complete step. `within_step`: it is not.
enum class Failure : std::int64_t { none, between_steps, within_step };

// `network` is the number of the network, the same on all ranks; 0 before they agree on one. `unsent` is a failure of
// an earlier call of this rank, which the other ranks have not received.
struct Notice {
  Topic topic{};
  std::int64_t network = 0;
  Failure unsent = Failure::none;
};

// The exception of a rank that receives the failure of another one.
struct RankFailed : c10::Error {
  RankFailed(const Ranks& ranks, std::int64_t rank, Failure failure);
  Failure failure;
};

// Calls Ranks::all_gather, and converts its exceptions to one line with the waiting rank and the operation.
void all_gather(Ranks& ranks, const at::Tensor& own, const at::Tensor& all, const std::string& what);

using Numbers = std::vector<std::int64_t>;

struct Notices {
  std::vector<Numbers> numbers;     // of each rank
  Failure failure = Failure::none;  // the worst failure that any rank had not sent before
};

// Sends the notice of each rank to all ranks, with the same number of values, at most 12, through `device`. `prepare`
// returns the values, and does all work that may fail on a single rank: its exceptions are rethrown, and the other
// ranks throw RankFailed. Throws c10::Error if the topics or networks of ranks differ.
//
// If all ranks load a state, `unsent` is returned on all of them. In other calls, ranks throw RankFailed, and the
// failed rank sends its notice again, for the next call of the other ranks.
Notices gather_notices(Ranks& ranks, const Notice& notice, c10::Device device, const std::function<Numbers()>& prepare);

// Sends the failure in place of the notice that the other ranks wait for.
void send_failure(Ranks& ranks, const Notice& notice, c10::Device device, Failure failure) noexcept;

// Exchanges the message after a notice, with the same number of values for each rank.
std::vector<Numbers> payloads(Ranks& ranks, const Numbers& own, c10::Device device, Topic topic);

// The part of a tensor on one rank: element i of the last dimension of `own` is element places[i] of the tensor.
// `places` is int64 on the CPU.
struct Share {
  at::Tensor own, places;
};

// Gathers `whole` on all ranks. Each index of the last dimension belongs to one rank, and no rank has more than `most`.
// `share` returns the part of this rank, and may allocate `whole`. `gather` is gather_notices: all ranks throw if one
// has insufficient memory.
void join(Ranks& ranks, Topic topic, std::int64_t most, const at::Tensor& whole, const std::function<Share()>& share,
          const std::function<std::vector<Numbers>(const std::function<Numbers()>&)>& gather);

// Returns the group of torch.distributed with this name. Throws NotImplementedError if torch has no torch.distributed.
std::shared_ptr<Ranks> ranks_of_name(const std::string& name);

// Returns a description of steps for messages.
std::string steps_in_words(std::int64_t first, std::int64_t steps);

}  // namespace spikeforge::simulation
