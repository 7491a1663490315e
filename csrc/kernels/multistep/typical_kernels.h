// The kernels of a cell for a call that is described but not made: to look at their source, or to compile them where
// there is no GPU.
#pragma once

#include "csrc/jit/recorder.h"
#include "csrc/kernels/multistep/spec.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::kernels {

// The tensors of the call, with all their gradients: none; PLIF's w, one for all neurons; or the initial states, and
// parameters that differ between neurons.
enum class Tensors : std::uint8_t { none, required, all };

struct TypicalCall {
  DType type = DType::f32;
  std::int64_t steps = 16;
  std::int64_t neurons = 1 << 22;
  bool store_states = false;
  Tensors tensors = Tensors::all;
  CellForm form{};
  int multiprocessors = 132;  // H100, H200
};

struct TypicalKernels {
  KernelSpec inference, forward, backward;  // forward in training: it saves checkpoints
};

TypicalKernels typical_kernels(const Cell& cell, const TypicalCall& call);

// The CUDA source of both directions of training, the forward kernel's first: two translation units, with an empty line
// between.
std::string print_cuda(const Cell& cell, const TypicalCall& call);

// "float16", "bfloat16", "float32", "float64", "int32"
std::string_view name_of(DType type);

// The kernels that calls of the predefined neurons need most: scalar parameters (PLIF: one w, learned), a hard reset,
// surrogates sigmoid and atan, float32, float16 and bfloat16, inference and training, few to many neurons and steps.
// `neurons` are operator names; none: all. Throws PackError for another name.
void add_predefined(jit::Recorder& recorder, const std::vector<std::string>& neurons = {});

}  // namespace spikeforge::kernels
