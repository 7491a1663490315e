#include "csrc/simulation/internal/partition.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <string>

namespace spikeforge::simulation {
namespace {

// Numbers the areas from 0, in the order of their first populations.
std::map<std::string, std::int64_t> areas_of(const Description& description) {
  std::map<std::string, std::int64_t> areas;
  for (const DescribedPopulation& described : description.neurons)
    if (!described.area.empty()) areas.try_emplace(described.area, std::ssize(areas));
  return areas;
}

// Returns the number of neurons on ranks before `rank`, if neurons are assigned round-robin to ranks from `from` on.
// After equal shares, the remaining neurons of a population continue at the rank after those of the previous
// population, so that ranks differ by at most one neuron.
std::int64_t dealt_before(std::int64_t rank, std::int64_t from, std::int64_t neurons, std::int64_t ranks) {
  const std::int64_t end = from + neurons, again = std::max<std::int64_t>(end - ranks, 0);
  return std::min(rank, again) + std::max<std::int64_t>(std::min(rank, end) - from, 0);
}

}  // namespace

std::vector<Slice> slices_of(const Description& description, std::int64_t rank, std::int64_t ranks) {
  const std::map<std::string, std::int64_t> areas = areas_of(description);
  const auto count = std::ssize(areas);
  const bool all_in_areas = std::ranges::none_of(
      description.neurons, [](const DescribedPopulation& described) { return described.area.empty(); });
  TORCH_CHECK_VALUE(!all_in_areas || count == 0 || count >= ranks, "Network: ", ranks, " ranks share a network of ",
                    count, " areas, and an area is not split over ranks: use at least as many areas as ranks");
  std::vector<Slice> slices;
  std::int64_t first = 0, dealt = 0;
  for (std::size_t i = 0; i < description.populations.size(); ++i) {
    const Population& p = description.populations[i];
    const std::string& area = description.neurons[i].area;
    Slice slice{.first = first};
    if (area.empty()) {
      const std::int64_t left_over = p.size() % ranks;
      const auto begin = [&](std::int64_t of) {
        return p.begin + p.size() / ranks * of + dealt_before(of, dealt, left_over, ranks);
      };
      slice.begin = begin(rank);
      slice.end = begin(rank + 1);
      dealt = (dealt + left_over) % ranks;
    } else {
      slice.begin = p.begin;
      slice.end = areas.at(area) * ranks / count == rank ? p.end : p.begin;
    }
    first += slice.size();
    slices.push_back(slice);
  }
  return slices;
}

Partition::Partition(const Description& description)
    : slices_(slices_of(description, description.rank(), description.ranks())), whole_(description.size()) {
  std::vector<at::Tensor> parts{at::empty({0}, at::kLong)};
  for (const Slice& slice : slices_) parts.push_back(at::arange(slice.begin, slice.end, at::kLong));
  numbers_ = at::cat(parts);
}

at::Tensor Partition::whole_columns(std::int64_t inputs) const {
  return at::arange(inputs, at::kLong).mul_(whole_).unsqueeze(1).add(numbers_).flatten();
}

bool stays_within(const Description& description, std::size_t sources, std::size_t targets) {
  const auto area = [&](std::size_t population) -> const std::string& { return description.neurons[population].area; };
  const bool has_areas = std::ranges::any_of(
      description.neurons, [](const DescribedPopulation& described) { return !described.area.empty(); });
  if (!has_areas) return description.ranks() == 1;
  return !area(sources).empty() && area(sources) == area(targets);
}

}  // namespace spikeforge::simulation
