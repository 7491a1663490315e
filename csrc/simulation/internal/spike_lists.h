// The spikes of steps on a GPU, listed piece by piece.
#pragma once

#include "csrc/simulation/internal/engine.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

namespace spikeforge::simulation {

class SpikeLists {
 public:
  SpikeLists(c10::Device device, std::int64_t first_step)
      : first_(first_step), steps_{at::empty({0}, at::TensorOptions(at::kLong).device(device))}, neurons_(steps_) {}

  // Lists the spikes of steps done, ..., done + count - 1 of the call from `fired` [at least count, neurons].
  void add(const at::Tensor& fired, std::int64_t done, std::int64_t count) {
    const at::Tensor places = fired.slice(0, 0, count).nonzero();
    steps_.push_back(places.select(1, 0).add(first_ + done));
    neurons_.push_back(places.select(1, 1));
  }

  Spikes take() const { return {at::cat(steps_), at::cat(neurons_)}; }

 private:
  const std::int64_t first_;
  std::vector<at::Tensor> steps_, neurons_;
};

}  // namespace spikeforge::simulation
