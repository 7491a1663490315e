// What ranks tell one another beside spikes, which is little and seldom.
//
// Before anything else of a call goes between ranks, each says in a notice what it is about to do. Notices of all calls
// have the same length: ranks that make different calls all see that and raise. Messages of different lengths that
// meet would end the process in gloo.
#pragma once

#include <spikeforge/simulation/ranks.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace spikeforge::simulation {

// What a call is about, in the order of the words in tell.cpp.
enum class Topic : std::int64_t {
  build,
  delays,
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

// Ranks::all_gather. What it throws becomes one line that says which rank waited for what.
void all_gather(Ranks& ranks, const at::Tensor& own, const at::Tensor& all, const std::string& what);

// The notice of each rank, with as many numbers: [ranks][numbers], at most 14. Told by way of `device`. Throws
// c10::Error where another rank tells of another topic or network.
std::vector<std::vector<std::int64_t>> told_by_all(Ranks& ranks, const Notice& notice,
                                                   const std::vector<std::int64_t>& own, c10::Device device);

// What follows a notice: as many numbers of each rank.
std::vector<std::vector<std::int64_t>> payloads(Ranks& ranks, const std::vector<std::int64_t>& own, c10::Device device,
                                                Topic topic);

// The same for all: places[i] is where the last dimension's element i of `own` belongs in it, of `whole` elements, each
// of which one rank has. `places` is int64 on the CPU.
at::Tensor joined(Ranks& ranks, const Notice& notice, const at::Tensor& own, const at::Tensor& places,
                  std::int64_t whole);

// For messages.
std::string steps_in_words(std::int64_t first, std::int64_t steps);

}  // namespace spikeforge::simulation
