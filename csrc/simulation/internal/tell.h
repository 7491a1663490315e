// What ranks tell one another beside spikes, which is little and seldom.
//
// Before anything else of a call goes between ranks, each says in a notice what it is about to do. Notices of all calls
// have the same length: ranks that make different calls all see that and raise. Messages of different lengths that
// meet would end the process in gloo. A rank that cannot go on sends a message of the length that the others wait for,
// which says so: then all ranks throw, and the next message of each is a notice again.
#pragma once

#include <spikeforge/simulation/ranks.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace spikeforge::simulation {

// What a call is about, in the order of the words in tell.cpp.
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

// `network` is the number that all ranks know it by, 0 before they agreed on one.
struct Notice {
  Topic topic{};
  std::int64_t network = 0;
};

// How a rank fails: between steps, or so that its state is that of no step.
enum class Failure : std::int64_t { none, between_steps, within_step };

// Another rank has failed.
struct RankFailed : c10::Error {
  RankFailed(const Ranks& ranks, std::int64_t rank, Failure failure);
  Failure failure;
};

// Ranks::all_gather. What it throws becomes one line that says which rank waited for what.
void all_gather(Ranks& ranks, const at::Tensor& own, const at::Tensor& all, const std::string& what);

using Numbers = std::vector<std::int64_t>;

// The notice of each rank, with as many numbers: [ranks][numbers], at most 13. Sent by way of `device`. `prepare` does
// what may fail before the rank sends its own numbers, which it returns: what it throws is thrown, and the other ranks
// throw RankFailed. Throws c10::Error where another rank tells of another topic or network.
std::vector<Numbers> told_by_all(Ranks& ranks, const Notice& notice, c10::Device device,
                                 const std::function<Numbers()>& prepare);

// A notice that says so, in place of the one that the other ranks wait for. Throws nothing.
void tell_failure(Ranks& ranks, const Notice& notice, c10::Device device, Failure failure) noexcept;

// What follows a notice: as many numbers of each rank.
std::vector<Numbers> payloads(Ranks& ranks, const Numbers& own, c10::Device device, Topic topic);

// What a rank has of a tensor: places[i] is where the last dimension's element i of `own` belongs in it. `places` is
// int64 on the CPU.
struct Share {
  at::Tensor own, places;
};

// `whole` becomes the same on all ranks. Each place of its last dimension is one rank's, and no rank has more than
// `most`. `share` makes what this rank has, and may make `whole`; `tell` is told_by_all, by which all ranks know that
// each has the memory.
void join(Ranks& ranks, Topic topic, std::int64_t most, const at::Tensor& whole, const std::function<Share()>& share,
          const std::function<std::vector<Numbers>(const std::function<Numbers()>&)>& tell);

// For messages.
std::string steps_in_words(std::int64_t first, std::int64_t steps);

}  // namespace spikeforge::simulation
