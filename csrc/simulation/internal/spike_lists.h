// The spikes of steps on a GPU, listed piece by piece.
#pragma once

#include "csrc/simulation/internal/engine.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_left_shift.h>
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

  // Lists the spikes of steps from number `done` of the call on. Bit n % 32 of element n / 32 of a row is neuron n.
  void add_bits(const at::Tensor& fired, std::int64_t done) {
    const at::Tensor words = fired.flatten(), places = words.nonzero().select(1, 0);
    const at::Tensor masks = at::bitwise_left_shift(at::Scalar(1), at::arange(32, words.options()));
    const at::Tensor bits = words.index_select(0, places).unsqueeze(1).bitwise_and(masks).nonzero();
    const at::Tensor place = places.index_select(0, bits.select(1, 0));
    steps_.push_back(place.div(fired.size(1), "floor").add(first_ + done));
    neurons_.push_back(place.remainder(fired.size(1)).mul(32).add(bits.select(1, 1)));
  }

  Spikes take() const { return {at::cat(steps_), at::cat(neurons_)}; }

 private:
  const std::int64_t first_;
  std::vector<at::Tensor> steps_, neurons_;
};

}  // namespace spikeforge::simulation
