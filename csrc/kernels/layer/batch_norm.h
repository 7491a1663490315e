// A neuron after a normalisation by the statistics of its input: one cooperative launch per pass
// (cuda/layer/batch_norm.cuh), if the loop's schedule and the neuron's parameters allow it.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/layer/arguments.h"
#include "csrc/kernels/multistep/launch.h"

#include <cstdint>
#include <optional>

namespace spikeforge::layers {

// Values per channel have the compute type.

// The last parameters of the loop are center, scale and shift, which the kernel writes.
struct BatchNormForward {
  const ForwardLaunch& run;
  double eps = 0;
  const void *weight = nullptr, *bias = nullptr;  // null: 1 and 0
  void *mean = nullptr, *var = nullptr, *rstd = nullptr;
  // Running statistics, which are moved towards those of the input (Included); null: there are none. `batches` is the
  // number of calls.
  void *running_mean = nullptr, *running_var = nullptr;
  std::int64_t* batches = nullptr;
  std::optional<double> momentum = std::nullopt;  // std::nullopt: the means over all calls
};

// `sums` computes all gradients except those of x, center, scale and shift; gradients of parameters are summed per
// channel, [C] each. `gradient`, of the cell with_statistics, computes only the gradient of x; the upstream gradient of
// its last output is 1. Its last parameters are offset and slope.
struct BatchNormBackward {
  const BackwardLaunch& sums;
  const BackwardLaunch& gradient;
  const void *rstd = nullptr, *grad_mean = nullptr, *grad_var = nullptr;  // null: no gradient
  void *grad_weight = nullptr, *grad_bias = nullptr;
};

bool fits_one_launch(const BatchNormForward& layer, const jit::Device& device);
bool fits_one_launch(const BatchNormBackward& layer, const jit::Device& device);

// The additional work that a layer's launch includes. The caller does the work whose member is false.
struct Included {
  bool moves_running = false;  // updates the running statistics
  bool writes_bits = false;    // writes the bits of the loop
};
Included launch_includes(const BatchNormForward& layer, const jit::Device& device);

// Launches a layer, asynchronously. The device must be current. Returns false if the layer does not fit, and then does
// nothing.
using kernels::Allocate;
bool launch_batch_norm(const BatchNormForward& layer, const jit::Device& device, void* stream,
                       const Allocate& allocate);
bool launch_batch_norm(const BatchNormBackward& layer, const jit::Device& device, void* stream,
                       const Allocate& allocate);

// Records the kernel of a layer that fits, while a pack is recorded.
void note(const BatchNormForward& layer);
void note(const BatchNormBackward& layer);

// Return the sources of the kernels, for tests.
jit::KernelSource source_of(const BatchNormForward& layer, const jit::Device& device);
jit::KernelSource source_of(const BatchNormBackward& layer, const jit::Device& device);

}  // namespace spikeforge::layers
