// A kernel spec: everything that decides a kernel's code, and the CUDA source it prints. Numbers (tau, N, T, strides, a
// surrogate's arguments) are arguments of the kernel and never in a spec; those in a neuron's text are part of its
// code.
#pragma once

#include "csrc/base/bounded_list.h"
#include "csrc/graph/cell.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/kernels/multistep/schedule.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace spikeforge::kernels {

enum class Direction : std::uint8_t { forward, backward };

// The operand in a place of the call: absent (a scalar, the cell's own state), or a tensor of a type.
enum class Operand : std::uint8_t { absent, f16, bf16, f32, f64, i32 };

// The neurons that share a value of a tensor parameter.
enum class Spread : std::uint8_t { one, by_warp, by_channel, by_neuron };

// How an upstream gradient is read; `ones` is 1 everywhere, and not read.
enum class GradKind : std::uint8_t { absent, rows, one_element, ones };

// The members that the loop of cuda/multistep/multistep.cuh needs in addition to its cell.
struct LoopSpec {
  Direction direction{};
  DType type{};
  Schedule schedule;
  bool save = false;
  bool store_states = false;
  std::uint8_t packed_bits = 0;  // forward: of each number of the first output, which is written as bits too
  bool wide = false;             // where parameters have channels: whether neurons are too many for 32 bits
  bool has_lengths = false, has_start = false;
  bool draws = false, draws_in_order = false;  // whether the cell does, and neurons lie in memory as in the shape
  CellForm form;

  bool operator==(const LoopSpec&) const = default;
};

// One input, state, parameter or output of a cell; what does not apply to it stays as it is.
struct Place {
  Operand operand{};    // of an initial state or a parameter
  Spread spread{};      // of a parameter
  GradKind grad{};      // that comes in, of a state or an output
  bool wanted = false;  // the gradient of an input, an initial state or a parameter

  bool operator==(const Place&) const = default;
};

struct KernelSpec {
  const Cell* cell = nullptr;
  LoopSpec loop;
  BoundedList<Place, graph::most_arguments + graph::most_outputs> places;  // of inputs, states, params, outputs

  bool operator==(const KernelSpec&) const = default;
};

// The parameters of a spec.
std::span<Place> params_of(KernelSpec& spec);

// A hash of the specs of one cell.
struct HashOfSpec {
  std::size_t operator()(const KernelSpec& spec) const;
};

// Choices that do not change a kernel's results are brought to one value, so that they do not multiply kernels.
KernelSpec spec_of(const ForwardLaunch& launch, const Schedule& schedule);
KernelSpec spec_of(const BackwardLaunch& launch, const Schedule& schedule);

jit::KernelSource print_source(const KernelSpec& spec);

// The argument type `args`, or that of samples.
std::string with_samples(const std::string& args, const LoopSpec& loop);

// The type of its kernel's argument.
std::string arguments_of(const LoopSpec& loop);

// The members of a Spec that describe the cell, its types, and the places of a call: for any loop that runs cells.
std::string print_members(const KernelSpec& spec, const CellText& cell);

// The spec's cell and, of these, the loop's struct Spec, in namespace spikeforge.
std::string print_loop(const KernelSpec& spec, const CellText& cell);

}  // namespace spikeforge::kernels
