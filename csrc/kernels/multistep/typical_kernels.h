// The kernels of a cell for a call that is described but not executed, to print their source, or to compile them
// without a GPU.
#pragma once

#include "csrc/jit/recorder.h"
#include "csrc/kernels/multistep/spec.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::kernels {

// The tensors of the call, with all their gradients: none; PLIF's w, one value for all neurons; or the initial states,
// and parameters that differ between neurons.
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
  KernelSpec inference, forward, backward;  // `forward` is for training: it saves checkpoints
};

TypicalKernels typical_kernels(const Cell& cell, const TypicalCall& call);

// Returns the CUDA source of both directions of training, the forward kernel first: two translation units, separated by
// an empty line.
std::string print_cuda(const Cell& cell, const TypicalCall& call);

// Returns "float16", "bfloat16", "float32", "float64" or "int32".
std::string_view name_of(DType type);

// Adds the kernels that calls of the predefined neurons need most often: scalar parameters (PLIF: one w, learned), a
// hard reset, surrogates sigmoid and atan, float32, float16 and bfloat16, inference and training, few to many neurons
// and steps. `neurons` are operator names; an empty list means all. Throws PackError for an unknown name.
void add_predefined(jit::Recorder& recorder, const std::vector<std::string>& neurons = {});

}  // namespace spikeforge::kernels
