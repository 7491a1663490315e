// Kernels of products with a random matrix that is not stored.
#pragma once

#include <spikeforge/kernels/event/random_rows.h>
#include <spikeforge/kernels/event/spec.h>

namespace spikeforge::jit {

// The kernel of `product` is not read: it is jit_gather or, under `product.transpose`, jit_scatter. Weights of a
// constant law are shared.
struct EventJitSpec {
  EventSpec product;
  event::Law law{};

  bool operator==(const EventJitSpec&) const = default;
};

KernelSource print_source(const EventJitSpec& spec);

// JitArgs in cuda/event_jit.cuh.
struct EventJitArguments {
  EventArguments product;
  event::RandomRows matrix;
};

}  // namespace spikeforge::jit
