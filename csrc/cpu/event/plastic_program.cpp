#include "csrc/cpu/event/plastic.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/hoist.h"
#include "csrc/graph/internal/lower.h"

#include <utility>

namespace spikeforge::cpu {

PlasticBlock::PlasticBlock(const graph::Synapse& synapse, const graph::SynapseBlock& block, bool of_traces, bool sends)
    : states(synapse.states.size()),
      traces(synapse.traces.size()),
      signals(synapse.signals.size()),
      changed(of_traces ? block.traces : block.states),
      sends(sends) {
  graph::Hoisted parts = graph::hoist(graph::lowered(block, of_traces, sends), synapse.param(0), synapse.params.size());
  prologue = std::move(parts.prologue);
  hoisted = prologue.results().size();
  tape = tape_of(parts.inner);
  reads.resize(tape.arguments);
  for (const Instruction& instruction : tape.instructions)
    for (int i = 0; i < operands_of(instruction); ++i)
      if (const std::uint32_t row = instruction.operands[static_cast<std::size_t>(i)]; row < tape.arguments)
        reads[row] = true;
}

template <class F> std::vector<double> PlasticBlock::numbers(std::span<const double> params) const {
  const std::vector<F> given(params.begin(), params.end());
  const std::vector<F> made = graph::evaluate<F>(prologue, given);
  return {made.begin(), made.end()};
}
template std::vector<double> PlasticBlock::numbers<float>(std::span<const double>) const;
template std::vector<double> PlasticBlock::numbers<double>(std::span<const double>) const;

PlasticProgram::PlasticProgram(const graph::Synapse& synapse)
    : pre(synapse, synapse.pre, /*of_traces=*/false, /*sends=*/true),
      silent_pre(synapse, synapse.pre, false, false),
      pre_traces(synapse, synapse.pre, true, false) {
  if (synapse.post) {
    post = PlasticBlock(synapse, *synapse.post, false, false);
    post_traces = PlasticBlock(synapse, *synapse.post, true, false);
  }
  if (synapse.each_step) each_step = PlasticBlock(synapse, *synapse.each_step, false, false);
  for (const auto& block : synapse.on_signal)
    on_signal.push_back(block ? PlasticBlock(synapse, *block, false, false) : PlasticBlock());
}

}  // namespace spikeforge::cpu
