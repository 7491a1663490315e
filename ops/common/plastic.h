// Plastic connections, the base of plastic_step and of networks: a rule with values for its parameters, and its events
// in a step on the CPU.
#pragma once

#include "csrc/cpu/event/plastic.h"
#include "csrc/graph/synapse.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/event/plastic.h"
#include "csrc/kernels/event/product.h"

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace spikeforge::ops::plastic {

struct Rule {
  explicit Rule(graph::Synapse given) : synapse(std::move(given)), program(synapse) {}

  graph::Synapse synapse;
  cpu::PlasticProgram program;

  // Compiled kernels for GPUs: by architecture, part, signal and type of the weights.
  using KernelKey = std::tuple<int, event::PlasticPart, std::size_t, DType>;
  mutable std::mutex mutex;
  mutable std::map<KernelKey, const jit::LoadedKernel*> kernels;
};

// Returns the rule of a text, which is the same object for the same text. Throws ValueError, with line, column and
// caret, if the text cannot be parsed; `op` begins the message.
std::shared_ptr<const Rule> rule_of(std::string_view text, const char* op);

// Returns the bounds to which the events of a rule clamp the weight, from constants or parameters; infinite if there
// are none.
std::pair<double, double> weight_bounds(const graph::Synapse& rule, c10::ArrayRef<double> params);

// A rule with values for its parameters. `type` is the type of the arithmetic, float or double.
class BoundRule {
 public:
  // Throws ValueError for a wrong number of parameters, and for a decay that is not a positive number.
  BoundRule(std::shared_ptr<const Rule> rule, c10::ArrayRef<double> params, DType type, const char* op);
  BoundRule(const BoundRule&) = delete;
  BoundRule& operator=(const BoundRule&) = delete;

  const graph::Synapse& synapse() const { return rule_->synapse; }
  const cpu::PlasticProgram& program() const { return rule_->program; }
  const Rule& rule() const { return *rule_; }
  DType type() const { return type_; }

  // A decaying trace. Its value after a step is target + (value - target) factor.
  struct TraceDecay {
    std::size_t trace = 0;
    double factor = 1, target = 0;
  };
  const std::vector<TraceDecay>& trace_decays() const { return trace_decays_; }
  // The decay of states, without their memory.
  const std::vector<cpu::PlasticState>& states() const { return states_; }
  const std::vector<double>& numbers(const cpu::PlasticBlock& block) const;

 private:
  std::shared_ptr<const Rule> rule_;
  DType type_;
  std::vector<cpu::PlasticState> states_;
  std::vector<std::vector<double>> factors_;        // of each decaying state: the factor by number of steps
  std::vector<std::vector<float>> narrow_factors_;  // the same in float
  std::vector<TraceDecay> trace_decays_;
  std::vector<std::pair<const cpu::PlasticBlock*, std::vector<double>>> numbers_;
};

// Connections by rows and by columns. Only rules with "on post" read `columns` and `slots`.
struct Matrix {
  event::Rows rows, columns;
  const std::int64_t* slots = nullptr;
  bool columns_ascend = false;  // true if columns ascend within a segment of a row, so that threads may own columns
  // For presynaptic traces with several delays (see PlasticCall).
  const void* delays = nullptr;
  bool wide_delays = false;
};

// Connections of some neurons, in the order in which they are processed.
struct Segments {
  std::vector<std::int32_t> own;
  std::vector<std::int64_t> begins, ends;
  std::int64_t total = 0;

  void clear();
  void add(std::int64_t neuron, std::int64_t begin, std::int64_t end);
};

// The states and traces of a step; PlasticCall documents them.
struct Memory {
  std::vector<cpu::PlasticState> states;
  std::vector<cpu::PlasticTrace> traces;
  std::vector<cpu::PlasticSignal> signals;
  std::uint32_t* last = nullptr;
  std::uint32_t now = 0;
  const std::int64_t* trace_offsets = nullptr;
};

// The parts of a step, in their order: decay; arrive, and change_traces of presynaptic neurons; fire, and change_traces
// of postsynaptic neurons; modulate. Any number of threads gives the same bits.
class Step {
 public:
  Step(const BoundRule& rule, const Matrix& matrix) : rule_(rule), matrix_(matrix) {}

  // Decays the traces of one side, [count] each.
  void decay(const Memory& memory, bool after, std::int64_t count) const;
  // Applies spikes that arrive at these connections. The sent values are added to `sent` [cols], if not null.
  void arrive(const Memory& memory, const Segments& segments, void* sent);
  // Applies the spikes of the postsynaptic neurons `columns`.
  void fire(const Memory& memory, const std::vector<std::int32_t>& columns);
  void change_traces(const Memory& memory, bool after, const std::vector<std::int32_t>& fired);
  // Updates all connections: the signals for which `comes` is true, and "each step".
  void modulate(const Memory& memory, const std::vector<bool>& comes);
  // Updates all states to this step.
  void refresh(const Memory& memory);

 private:
  cpu::PlasticCall call(const Memory& memory, const cpu::PlasticBlock* block) const;
  void run(const cpu::PlasticCall& call, const Segments& segments, bool by_columns) const;
  void run_all(const cpu::PlasticCall& call);

  const BoundRule& rule_;
  const Matrix& matrix_;
  Segments fired_, all_;
};

}  // namespace spikeforge::ops::plastic
