// The neurons of a rank: a slice of each population. The populations of an area are on one rank.
#pragma once

#include "csrc/simulation/internal/description.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace spikeforge::simulation {

// This rank's neurons of a population. Neuron begin + i of the network is own neuron first + i.
struct Slice {
  std::int64_t begin = 0, end = 0;  // in the whole network
  std::int64_t first = 0;

  std::int64_t size() const { return end - begin; }
};

inline std::int64_t neurons_of(const std::vector<Slice>& slices) {
  return slices.empty() ? 0 : slices.back().first + slices.back().size();
}

// Returns one slice per population. Throws ValueError if there are fewer areas than ranks.
std::vector<Slice> slices_of(const Description& description, std::int64_t rank, std::int64_t ranks);

class Partition {
 public:
  explicit Partition(const Description& description);

  std::int64_t whole() const { return whole_; }
  std::int64_t size() const { return neurons_of(slices_); }
  bool is_whole() const { return whole_ == size(); }
  const std::vector<Slice>& slices() const { return slices_; }
  const Slice& operator[](std::size_t population) const { return slices_[population]; }

  // The indices of this rank's neurons in the whole network, in ascending order: int64 [size()], on the CPU.
  const at::Tensor& numbers() const { return numbers_; }
  // The same for columns, with `inputs` columns per neuron: int64 [inputs * size()].
  at::Tensor whole_columns(std::int64_t inputs) const;

 private:
  std::vector<Slice> slices_;
  std::int64_t whole_ = 0;
  at::Tensor numbers_;
};

// True if connections between two populations stay within an area, and so on one rank. Without areas and other ranks,
// this is always true.
bool stays_within(const Description& description, std::size_t sources, std::size_t targets);

}  // namespace spikeforge::simulation
