// Plastic connections on the CPU: the updates of a rule at the events of a step, compiled for one instruction set. The
// operator starts threads and selects the connections of each event.
//
// Connections are processed in pieces: the values that the block reads are gathered into rows, the tape runs over the
// rows, and changed values are scattered. The new values of a connection do not depend on the other connections of its
// piece.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"
#include "csrc/cpu/multistep/tape.h"
#include "csrc/graph/synapse.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spikeforge::cpu {

// A block of a rule as a tape. Its arguments are the connection's states, traces, values computed from parameters, and
// signals.
struct PlasticBlock {
  PlasticBlock() = default;
  // Computes the states and the sent value of a block, or, with `of_traces`, its traces.
  PlasticBlock(const graph::Synapse& synapse, const graph::SynapseBlock& block, bool of_traces, bool sends);

  // Returns the values computed from these parameters, in the arithmetic of F.
  template <class F> std::vector<double> numbers(std::span<const double> params) const;

  bool is_empty() const { return tape.results == 0; }

  Tape tape;
  graph::Graph prologue;
  std::size_t states = 0, traces = 0, hoisted = 0, signals = 0;
  std::vector<bool> reads;           // for each argument
  std::vector<std::size_t> changed;  // states or traces, in the order of results
  bool sends = false;                // true if the sent value follows them
};

struct PlasticProgram {
  explicit PlasticProgram(const graph::Synapse& synapse);

  // The update at a presynaptic spike; the same, if the sent value is not used; and the traces of the presynaptic
  // neuron.
  PlasticBlock pre, silent_pre, pre_traces;
  PlasticBlock post, post_traces, each_step;
  std::vector<PlasticBlock> on_signal;
};

// A state of each connection, and its decay.
struct PlasticState {
  void* data = nullptr;
  DType type{};  // in memory
  bool decays = false;
  double log_factor = 0;  // exp(log_factor) remains after a step
  double target = 0;
  const void* factors = nullptr;  // [plastic_factors] in the arithmetic's type: the remainder after 0, 1, ... steps
};
constexpr std::size_t plastic_factors = 1024;

struct PlasticTrace {
  void* data = nullptr;  // in the arithmetic's type
  bool after = false;
};

struct PlasticSignal {
  const void* data = nullptr;  // in the arithmetic's type
  bool of_columns = false;     // true: one value for each neuron after; false: one for all
};

struct PlasticCall {
  DType type{};                         // of the arithmetic: f32 or f64
  const PlasticBlock* block = nullptr;  // null: states only decay
  std::span<const double> numbers;
  std::span<const PlasticState> states;
  std::span<const PlasticTrace> traces;
  std::span<const PlasticSignal> signals;
  std::uint32_t* last = nullptr;  // of each connection: the step of its decaying states; null: none decays
  std::uint32_t now = 0;
  // For a connection of delay d, the traces of the neurons before it start at element trace_offsets[d]; null: at
  // element 0.
  const void* delays = nullptr;
  bool wide_delays = false;
  const std::int64_t* trace_offsets = nullptr;
  void* sent = nullptr;  // [columns], to which sent values are added; null if they are not used
};

// The connections of some neurons. Those of neuron own[i] are at others[begins[i]], ..., others[ends[i] - 1].
struct PlasticWalk {
  bool by_columns = false;  // true: own are columns and others are rows; false: the reverse
  const std::int32_t* own = nullptr;
  const std::int64_t* begins = nullptr;
  const std::int64_t* ends = nullptr;
  std::int64_t count = 0;
  const std::int32_t* others = nullptr;
  const std::int64_t* slots = nullptr;  // the connection of each place; null: its index
};

struct PlasticKernels {
  // Returns the bytes of scratch memory, aligned to a cache line, that the functions below need.
  std::size_t (*scratch)(const PlasticCall&);
  void (*connections)(const PlasticCall&, const PlasticWalk&, void* scratch);
  // Updates the traces of the neurons that fired.
  void (*neurons)(const PlasticCall&, const std::int32_t* fired, std::int64_t count, void* scratch);
  // Sets each value to target + (value - target) factor.
  void (*decay)(DType type, void* values, std::int64_t count, double factor, double target);
};

SPIKEFORGE_EACH_SET(const PlasticKernels&, plastic_kernels, ());

// Returns the kernels of the instruction set that kernels.h chooses.
const PlasticKernels& plastic_kernels();

}  // namespace spikeforge::cpu
