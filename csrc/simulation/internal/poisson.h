// Poisson input as a neuron that draws: its counts are numbers of neuron, step and seed alone, with the same bits on
// every device.
#pragma once

#include <spikeforge/ops/traced.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace spikeforge::simulation {

// x + weight * counts of one step.
struct PoissonInput {
  Neuron neuron;
  std::vector<at::Tensor> params;
};

// rates: float64 on the CPU, [] or one for each neuron. None where all of them are 0. The parameters are on `device`
// where they differ from neuron to neuron.
std::optional<PoissonInput> poisson_input(const at::Tensor& rates, double weight, const at::TensorOptions& options);

}  // namespace spikeforge::simulation
