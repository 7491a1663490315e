// Kernels of connections that learn on a GPU: one for each part of a step.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/graph/synapse.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/event/plastic_arguments.h"

#include <cstddef>
#include <cstdint>

namespace spikeforge::event {

enum class PlasticPart : std::uint8_t {
  fired,        // lists the neurons that fired, for the parts below
  pre,          // spikes arrive
  sending_pre,  // spikes arrive, and the sent values are added to sums by columns
  pre_traces,
  post,
  post_traces,
  signal,
  each_step,
  refresh  // states decay
};

constexpr int plastic_threads = 256;  // of a block

// True if the rule has code for this part.
bool has_part(const graph::Synapse& synapse, PlasticPart part, std::size_t signal = 0);

// `weight` is the type of the weights; arithmetic is float, or double for double weights. `signal` is the index of the
// signal of the part.
jit::KernelSource print_source(const graph::Synapse& synapse, PlasticPart part, std::size_t signal, DType weight);

}  // namespace spikeforge::event
