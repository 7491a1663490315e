// The kernels of a traced cell for a call that is described but not made: to look at their source, or to compile them
// where there is no GPU.
#pragma once

#include <spikeforge/runtime/traced_spec.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace spikeforge::runtime {

struct TypicalCall {
  DType type = DType::f32;
  std::int64_t steps = 16;
  std::int64_t neurons = 1 << 22;
  bool store_states = false;
  bool with_tensors = true;  // initial states, and parameters that differ between neurons, with all their gradients
};

struct TypicalKernels {
  TracedSpec forward, backward;  // forward in training: it saves checkpoints
};

// As they would be launched on a device of 132 multiprocessors (H100, H200).
TypicalKernels typical_kernels(const TracedCell& cell, const TypicalCall& call);

// The CUDA source of both, the forward kernel's first: two translation units, with an empty line between.
std::string print_cuda(const TracedCell& cell, const TypicalCall& call);

// "float16", "bfloat16", "float32", "float64"
std::string_view name_of(DType type);

}  // namespace spikeforge::runtime
