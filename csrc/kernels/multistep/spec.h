// A kernel spec: all properties that determine a kernel's code, and its CUDA source. Numbers (tau, N, T, strides, a
// surrogate's arguments) are arguments of the kernel and never part of a spec; numbers in neuron text are part of the
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

// The operand in a place of the call: absent (a scalar, the cell's initial state), or a tensor of a type.
enum class Operand : std::uint8_t { absent, f16, bf16, f32, f64, i32 };

// The neurons that share a value of a tensor parameter.
enum class Spread : std::uint8_t { one, by_warp, by_channel, by_neuron };

// The layout of an upstream gradient; `ones` is 1 everywhere, and not read.
enum class GradKind : std::uint8_t { absent, rows, one_element, ones };

// The members that the loop of cuda/multistep/multistep.cuh needs in addition to its cell.
struct LoopSpec {
  Direction direction{};
  DType type{};
  Schedule schedule;
  bool save = false;
  bool store_states = false;
  std::uint8_t packed_bits = 0;  // forward: bits per number of the first output; 0: not packed
  bool wide = false;             // true if neurons exceed 32 bits and parameters have channels
  bool has_lengths = false, has_start = false;
  bool draws = false, draws_in_order = false;  // true if the cell draws; true if memory has the order of the shape
  CellForm form;

  bool operator==(const LoopSpec&) const = default;
};

// One input, state, parameter or output of a cell. Members that do not apply to it have their default value.
struct Place {
  Operand operand{};    // for an initial state or a parameter
  Spread spread{};      // for a parameter
  GradKind grad{};      // the upstream gradient of a state or an output
  bool wanted = false;  // true if the gradient of the input, initial state or parameter is wanted

  bool operator==(const Place&) const = default;
};

struct KernelSpec {
  const Cell* cell = nullptr;
  LoopSpec loop;
  BoundedList<Place, graph::most_arguments + graph::most_outputs> places;  // of inputs, states, params, outputs

  bool operator==(const KernelSpec&) const = default;
};

// Returns the parameters of a spec.
std::span<Place> params_of(KernelSpec& spec);

// A hash of the specs of one cell.
struct HashOfSpec {
  std::size_t operator()(const KernelSpec& spec) const;
};

// Returns the spec of a launch. Choices that do not change a kernel's results have a fixed value, so that they do not
// result in different kernels.
KernelSpec spec_of(const ForwardLaunch& launch, const Schedule& schedule);
KernelSpec spec_of(const BackwardLaunch& launch, const Schedule& schedule);

jit::KernelSource print_source(const KernelSpec& spec);

// Returns the argument type `args`, or the one with samples.
std::string with_samples(const std::string& args, const LoopSpec& loop);

// Returns the type of the kernel's argument.
std::string arguments_of(const LoopSpec& loop);

// Prints the members of a Spec that describe the cell, its types, and the places of a call, for any loop that runs
// cells.
std::string print_members(const KernelSpec& spec, const CellText& cell);

// Prints the spec's cell, and the loop's struct Spec with these members and `more` in namespace spikeforge.
std::string print_loop(const KernelSpec& spec, const CellText& cell, const std::string& more = {});

}  // namespace spikeforge::kernels
