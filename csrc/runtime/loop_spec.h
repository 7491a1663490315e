// What the loop of cuda/multistep.cuh wants to know at compile time besides its cell, and the source of a kernel.
#pragma once

#include <spikeforge/runtime/kernel_cache.h>
#include <spikeforge/runtime/launch.h>
#include <spikeforge/runtime/schedule.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace spikeforge::runtime {

enum class Direction : std::uint8_t { forward, backward };

// What stands in a place of the call: nothing (a number, the cell's own state), or a tensor of a type.
enum class Operand : std::uint8_t { absent, f16, bf16, f32, f64, i32 };
Operand operand(DType type);

// How an upstream gradient is read.
enum class GradKind : std::uint8_t { absent, rows, one_element };
GradKind kind_of(const SequenceView& view);

struct LoopSpec {
  Direction direction{};
  DType type{};
  Schedule schedule;
  bool save = false;
  bool store_states = false;

  bool operator==(const LoopSpec&) const = default;
};

// One input, state, parameter or output of a cell; what does not apply to it stays as it is.
struct Place {
  Operand operand{};    // of an initial state or a parameter
  bool shared = false;  // a parameter, by all neurons of a warp
  GradKind grad{};      // that comes in, of a state or an output
  bool wanted = false;  // the gradient of an input, an initial state or a parameter

  bool operator==(const Place&) const = default;
};

struct Places {
  std::span<const Place> inputs, states, params, outputs;
};

struct CellText {
  std::string name;                // of the kernel, for people
  std::string text;                // what must be declared: an #include, or the cell itself
  std::vector<std::string> types;  // "Options = ...", and so on for Surrogate and Cell, in terms of Compute
};

KernelSource print_kernel(const LoopSpec& spec, const CellText& cell, const Places& places);

}  // namespace spikeforge::runtime
