// A traced cell's kernel spec: everything that decides generated code, and the CUDA source it prints. As in
// kernel_spec.h, numbers, sizes and strides are arguments of the kernel; those in the neuron's text are part of its
// code.
#pragma once

#include <spikeforge/runtime/loop_spec.h>
#include <spikeforge/runtime/spec_table.h>
#include <spikeforge/runtime/traced_launch.h>

#include <cstddef>
#include <vector>

namespace spikeforge::runtime {

struct TracedSpec {
  const TracedCell* cell = nullptr;  // interned: the same text is the same cell
  LoopSpec loop;
  std::vector<Place> places;  // of inputs, states, parameters, outputs

  bool operator==(const TracedSpec&) const = default;
};

template <>
struct HashOfSpecBytes<TracedSpec> {
  std::size_t operator()(const TracedSpec& spec) const;
};

TracedSpec traced_spec(const TracedForwardLaunch& launch, const Schedule& schedule);
TracedSpec traced_spec(const TracedBackwardLaunch& launch, const Schedule& schedule);

KernelSource print_source(const TracedSpec& spec);

}  // namespace spikeforge::runtime
