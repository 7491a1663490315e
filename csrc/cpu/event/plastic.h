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

// A block of a rule as a tape, whose arguments are the connection's states, traces, numbers computed from parameters,
// and signals.
struct PlasticBlock {
  PlasticBlock() = default;
  // Computes those of a block's results that are states and sent values, or with `of_traces` the traces.
  PlasticBlock(const graph::Synapse& synapse, const graph::SynapseBlock& block, bool of_traces, bool sends);

  // The values of the numbers in the arithmetic of F for these parameters.
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

  // At a presynaptic spike; the same, if the sent value is not used; and the traces of its neuron.
  PlasticBlock pre, silent_pre, pre_traces;
  PlasticBlock post, post_traces, each_step;
  std::vector<PlasticBlock> on_signal;
};

// A state of each connection, and how it decays.
struct PlasticState {
  void* data = nullptr;
  DType type{};  // of its memory
  bool decays = false;
  double log_factor = 0;  // what is left after a step: exp(log_factor)
  double target = 0;
  const void* factors = nullptr;  // [plastic_factors] in the arithmetic's type: what is left after 0, 1, ... steps
};
constexpr std::size_t plastic_factors = 1024;

struct PlasticTrace {
  void* data = nullptr;  // in the arithmetic's type
  bool after = false;
};

struct PlasticSignal {
  const void* data = nullptr;  // in the arithmetic's type
  bool of_columns = false;     // one for each neuron after, else one for all
};

struct PlasticCall {
  DType type{};                         // of the arithmetic: f32 or f64
  const PlasticBlock* block = nullptr;  // null: states decay, and nothing else happens
  std::span<const double> numbers;
  std::span<const PlasticState> states;
  std::span<const PlasticTrace> traces;
  std::span<const PlasticSignal> signals;
  std::uint32_t* last = nullptr;  // of each connection: the step that its decaying states are of; null: none decays
  std::uint32_t now = 0;
  // Traces before a connection of delay d are those of element trace_offsets[d] and on; null: of 0 and on.
  const void* delays = nullptr;
  bool wide_delays = false;
  const std::int64_t* trace_offsets = nullptr;
  void* sent = nullptr;  // [columns], to which sent values are added; null if they are not used
};

// Connections of some neurons: places begins[i], ..., ends[i] - 1 of `others` are those of neuron own[i].
struct PlasticWalk {
  bool by_columns = false;  // own are columns and others are rows; else the reverse
  const std::int32_t* own = nullptr;
  const std::int64_t* begins = nullptr;
  const std::int64_t* ends = nullptr;
  std::int64_t count = 0;
  const std::int32_t* others = nullptr;
  const std::int64_t* slots = nullptr;  // the connection of each place; null: its number
};

struct PlasticKernels {
  // Bytes of memory on a cache line that the others need.
  std::size_t (*scratch)(const PlasticCall&);
  void (*connections)(const PlasticCall&, const PlasticWalk&, void* scratch);
  // Traces of the neurons that fired.
  void (*neurons)(const PlasticCall&, const std::int32_t* fired, std::int64_t count, void* scratch);
  // value = target + (value - target) factor
  void (*decay)(DType type, void* values, std::int64_t count, double factor, double target);
};

SPIKEFORGE_EACH_SET(const PlasticKernels&, plastic_kernels, ());

// Those of the set that kernels.h chooses.
const PlasticKernels& plastic_kernels();

}  // namespace spikeforge::cpu
