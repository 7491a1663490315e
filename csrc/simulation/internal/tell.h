// What ranks tell one another beside spikes, which is little and seldom.
#pragma once

#include <spikeforge/simulation/ranks.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace spikeforge::simulation {

// Ranks::all_gather. What it throws becomes one line that says which rank waited for what.
void all_gather(Ranks& ranks, const at::Tensor& own, const at::Tensor& all, const std::string& what);

// As many numbers of each rank: [ranks][numbers]. Told by way of `device`.
std::vector<std::vector<std::int64_t>> told_by_all(Ranks& ranks, const std::vector<std::int64_t>& own,
                                                   c10::Device device, const std::string& what);

// The same for all: places[i] is where the last dimension's element i of `own` belongs in it, of `whole` elements, each
// of which one rank has. `places` is int64 on the CPU.
at::Tensor joined(Ranks& ranks, const at::Tensor& own, const at::Tensor& places, std::int64_t whole,
                  const std::string& what);

}  // namespace spikeforge::simulation
