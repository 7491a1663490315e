// The kernel of event_linear.
#pragma once

#include <spikeforge/kernels/event/spec.h>

namespace spikeforge::jit {

// Of `product` weight, entry and values are read.
struct EventLinearSpec {
  EventSpec product;
  bool packed = false;

  bool operator==(const EventLinearSpec&) const = default;
};

KernelSource print_source(const EventLinearSpec& spec);

// LinearArgs in cuda/event_linear.cuh.
struct EventLinearArguments {
  const void* x;
  const void* weight;
  const void* bias;
  void* y;
  void* parts;
  std::int64_t in, out, words, batches, first_batch;
};

}  // namespace spikeforge::jit
