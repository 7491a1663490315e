// Plastic connections beneath plastic_step and networks: a rule with numbers for its parameters, and what it does at
// the events of a step on the CPU.
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

// The rule of a text; the same one for the same text. Throws ValueError, with line, column and caret where the text
// cannot be read; `op` begins the message.
std::shared_ptr<const Rule> rule_of(std::string_view text, const char* op);

// The least and the most that the events of a rule clamp the weight to, by constants or parameters; infinite without.
std::pair<double, double> weight_bounds(const graph::Synapse& rule, c10::ArrayRef<double> params);

// Arithmetic in float or double, `type`.
class BoundRule {
 public:
  // Throws ValueError for a wrong number of parameters, and where a value decays by what is no positive number.
  BoundRule(std::shared_ptr<const Rule> rule, c10::ArrayRef<double> params, DType type, const char* op);
  BoundRule(const BoundRule&) = delete;
  BoundRule& operator=(const BoundRule&) = delete;

  const graph::Synapse& synapse() const { return rule_->synapse; }
  const cpu::PlasticProgram& program() const { return rule_->program; }
  const Rule& rule() const { return *rule_; }
  DType type() const { return type_; }

  // The value of a decaying number after a step: target + (number - target) factor.
  struct TraceDecay {
    std::size_t trace = 0;
    double factor = 1, target = 0;
  };
  const std::vector<TraceDecay>& trace_decays() const { return trace_decays_; }
  // How states decay, without their memory.
  const std::vector<cpu::PlasticState>& states() const { return states_; }
  const std::vector<double>& numbers(const cpu::PlasticBlock& block) const;

 private:
  std::shared_ptr<const Rule> rule_;
  DType type_;
  std::vector<cpu::PlasticState> states_;
  std::vector<std::vector<double>> factors_;        // of each state that decays: what is left of it after so many steps
  std::vector<std::vector<float>> narrow_factors_;  // the same in float
  std::vector<TraceDecay> trace_decays_;
  std::vector<std::pair<const cpu::PlasticBlock*, std::vector<double>>> numbers_;
};

// Connections by rows and by columns. `columns` and `slots` are read by rules with "on post" alone.
struct Matrix {
  event::Rows rows, columns;
  const std::int64_t* slots = nullptr;
  bool columns_ascend = false;  // within a segment of a row, so that threads may own columns
  // For presynaptic traces with several delays: PlasticCall.
  const void* delays = nullptr;
  bool wide_delays = false;
};

// Connections of some neurons, in the order in which they are taken.
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

// The parts of a step, in their order: decay; arrive and change_traces of the neurons before; fire and change_traces of
// those after; modulate. Any number of threads gives the same bits.
class Step {
 public:
  Step(const BoundRule& rule, const Matrix& matrix) : rule_(rule), matrix_(matrix) {}

  // Traces of one side: [count] each.
  void decay(const Memory& memory, bool after, std::int64_t count) const;
  // Spikes reach these connections; what they send is added to `sent` [cols], if not null.
  void arrive(const Memory& memory, const Segments& segments, void* sent);
  // The neurons after these connections have fired.
  void fire(const Memory& memory, const std::vector<std::int32_t>& columns);
  void change_traces(const Memory& memory, bool after, const std::vector<std::int32_t>& fired);
  // Updates all connections: the signals for which `comes` is true, and "each step".
  void modulate(const Memory& memory, const std::vector<bool>& comes);
  // Brings all states to this step.
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
