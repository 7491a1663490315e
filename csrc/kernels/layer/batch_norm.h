// A neuron after a normalisation by the statistics of its own input: one cooperative launch per pass
// (cuda/layer/batch_norm.cuh), if the loop's schedule and the neuron's parameters allow it.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/layer/arguments.h"
#include "csrc/kernels/multistep/launch.h"

#include <cstdint>
#include <optional>

namespace spikeforge::layers {

// Numbers of channels are of the compute type.

// The loop's last parameters are center, scale and shift, as the kernel writes them.
struct BatchNormForward {
  const ForwardLaunch& run;
  double eps = 0;
  const void *weight = nullptr, *bias = nullptr;  // null: 1 and 0
  void *mean = nullptr, *var = nullptr, *rstd = nullptr;
  // Running statistics, which move towards those of the input (Besides); null: there are none. `batches` counts
  // the calls.
  void *running_mean = nullptr, *running_var = nullptr;
  std::int64_t* batches = nullptr;
  std::optional<double> momentum = std::nullopt;  // none: the means over all calls
};

// `sums` computes all gradients but those of x, center, scale and shift; those of parameters become sums over channels,
// [C] each. `gradient`, of the cell with_statistics, computes only that of x; the upstream gradient of its last output
// is 1. Its last parameters are offset and slope.
struct BatchNormBackward {
  const BackwardLaunch& sums;
  const BackwardLaunch& gradient;
  const void *rstd = nullptr, *grad_mean = nullptr, *grad_var = nullptr;  // no gradient: null
  void *grad_weight = nullptr, *grad_bias = nullptr;
};

bool fits_one_launch(const BatchNormForward& layer, const jit::Device& device);
bool fits_one_launch(const BatchNormBackward& layer, const jit::Device& device);

// The additional work that a layer's launch includes; the caller does the work whose member is false.
struct Besides {
  bool moves_running = false;  // running statistics
  bool writes_bits = false;    // the bits that the loop writes
};
Besides done_besides(const BatchNormForward& layer, const jit::Device& device);

// False for a layer that does not fit: nothing is done. The device must be current; nothing is waited for.
using kernels::Allocate;
bool launch_batch_norm(const BatchNormForward& layer, const jit::Device& device, void* stream,
                       const Allocate& allocate);
bool launch_batch_norm(const BatchNormBackward& layer, const jit::Device& device, void* stream,
                       const Allocate& allocate);

// Notes the kernel of one that fits, where a pack is recorded.
void note(const BatchNormForward& layer);
void note(const BatchNormBackward& layer);

// For tests.
jit::KernelSource source_of(const BatchNormForward& layer, const jit::Device& device);
jit::KernelSource source_of(const BatchNormBackward& layer, const jit::Device& device);

}  // namespace spikeforge::layers
