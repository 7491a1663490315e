#include "csrc/codegen/plastic_printer.h"
#include "csrc/codegen/cell_printer.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/lower.h"

#include <cstdint>
#include <span>
#include <vector>

namespace spikeforge::codegen {
namespace {

using Bits = std::uint64_t;

// The arguments on which results depend, of `count` from the first on.
Bits bits_of(const std::vector<bool>& live, std::size_t first, std::size_t count) {
  Bits bits = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (live[first + i]) bits |= Bits{1} << i;
  return bits;
}

Bits bits_of(std::span<const std::size_t> numbers) {
  Bits bits = 0;
  for (const std::size_t i : numbers) bits |= Bits{1} << i;
  return bits;
}

// The block with these results alone, as plain arithmetic.
graph::Graph chosen(const graph::SynapseBlock& block, bool of_traces, bool sends) {
  const std::span<const graph::Id> results = block.graph.results();
  const std::size_t first = of_traces ? block.states.size() : 0;
  const std::size_t count = of_traces ? block.traces.size() : block.states.size();
  std::vector<graph::Id> wanted(results.begin() + static_cast<std::ptrdiff_t>(first),
                                results.begin() + static_cast<std::ptrdiff_t>(first + count));
  if (sends) wanted.push_back(results.back());
  return graph::lowered(graph::restricted(block.graph, block.graph.argument_count(), wanted));
}

}  // namespace

std::string print_block(const graph::Synapse& s, const graph::SynapseBlock* block, bool of_traces, bool sends) {
  const graph::Graph graph = block == nullptr ? graph::Graph() : chosen(*block, of_traces, sends);
  const std::vector<bool> live =
      block == nullptr ? std::vector<bool>(s.signal(s.signals.size())) : graph::live_nodes(graph);
  const std::vector<std::size_t> none;
  const std::vector<std::size_t>& changed = block == nullptr ? none : of_traces ? block->traces : block->states;
  Bits decaying = 0, after = 0;
  for (const graph::Decay& decay : s.decays)
    if (!decay.of_trace && !of_traces) decaying |= Bits{1} << decay.number;
  for (std::size_t i = 0; i < s.traces.size(); ++i)
    if (s.traces[i].after) after |= Bits{1} << i;

  Lines line;
  line("#include <spikeforge/neuron/functions.h>");
  line("");
  line("namespace spikeforge {{");
  line("// {}", s.name);
  line("template <class F>");
  line("struct Block {{");
  line("  static constexpr int n_states = {}, n_traces = {}, n_params = {}, n_signals = {};", s.states.size(),
       s.traces.size(), s.params.size(), s.signals.size());
  line("  static constexpr unsigned reads_states = {}, changes_states = {}, decaying = {};",
       bits_of(live, 0, s.states.size()), of_traces ? 0 : bits_of(changed), decaying);
  line("  static constexpr unsigned reads_traces = {}, changes_traces = {}, traces_after = {}, reads_signals = {};",
       bits_of(live, s.states.size(), s.traces.size()), of_traces ? bits_of(changed) : 0, after,
       bits_of(live, s.signal(0), s.signals.size()));
  line("  static constexpr bool sends = {};", sends);
  line("");
  line("  static SPIKEFORGE_FN void run(F* states, F* traces, const F* params, const F* signals, F& sent) {{");
  if (block != nullptr) {
    std::vector<std::string> sources;
    const auto add = [&](const char* list, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) sources.push_back(fmt::format("{}[{}]", list, i));
    };
    add("states", s.states.size());
    add("traces", s.traces.size());
    add("params", s.params.size());
    add("signals", s.signals.size());
    const std::vector<std::string> results = print_body(line, graph, sources);
    for (std::size_t k = 0; k < changed.size(); ++k)
      line("    {}[{}] = {};", of_traces ? "traces" : "states", changed[k], results[k]);
    if (sends) line("    sent = {};", results.back());
  }
  line("  }}");
  line("}};");
  line("}}  // namespace spikeforge");
  return line.take();
}

}  // namespace spikeforge::codegen
