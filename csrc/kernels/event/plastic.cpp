#include "csrc/kernels/event/plastic.h"
#include "csrc/codegen/cell_printer.h"
#include "csrc/codegen/lines.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/lower.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace spikeforge::event {
namespace {

const graph::SynapseBlock* block_of(const graph::Synapse& s, PlasticPart part, std::size_t signal) {
  const auto found = [](const std::optional<graph::SynapseBlock>& block) { return block ? &*block : nullptr; };
  switch (part) {
    case PlasticPart::pre:
    case PlasticPart::sending_pre:
    case PlasticPart::pre_traces: return &s.pre;
    case PlasticPart::post:
    case PlasticPart::post_traces: return found(s.post);
    case PlasticPart::signal: return found(s.on_signal[signal]);
    case PlasticPart::each_step: return found(s.each_step);
    case PlasticPart::fired:
    case PlasticPart::refresh: break;
  }
  return nullptr;
}

// True if the block changes a trace. The next value of a trace may be the trace itself.
bool changes_traces(const graph::Synapse& synapse, const graph::SynapseBlock& block) {
  for (std::size_t k = 0; k < block.traces.size(); ++k)
    if (block.graph.results()[block.states.size() + k] != synapse.states.size() + block.traces[k]) return true;
  return false;
}

bool is_of_traces(PlasticPart part) { return part == PlasticPart::pre_traces || part == PlasticPart::post_traces; }

// ---- a block as code ----

using Bits = std::uint64_t;

// Returns a bit for each of `count` arguments from `first` on: true if results depend on it.
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

// The update of a connection, or of a neuron's traces, as C++: a struct that the loops of cuda/event/plastic.cuh run.
//
//   template <class F> struct Block
//     n_states, n_traces, n_params, n_signals        of the rule
//     reads_, changes_, decaying, traces_after       a bit for each state, trace or signal
//     run(states, traces, params, signals, sent)     changes its arguments
//
// Prints the states and the sent value of a block, or its traces. If `block` is null, the states only decay. The text
// starts with its #include, and opens and closes namespace spikeforge.
std::string print_block(const graph::Synapse& s, const graph::SynapseBlock* block, bool of_traces, bool sends) {
  const graph::Graph graph = block == nullptr ? graph::Graph() : graph::lowered(*block, of_traces, sends);
  const std::vector<bool> live =
      block == nullptr ? std::vector<bool>(s.signal(s.signals.size())) : graph::live_nodes(graph);
  const std::vector<std::size_t> none;
  const std::vector<std::size_t>& changed = block == nullptr ? none : of_traces ? block->traces : block->states;
  Bits decaying = 0, after = 0;
  for (const graph::Decay& decay : s.decays)
    if (!decay.of_trace && !of_traces) decaying |= Bits{1} << decay.number;
  for (std::size_t i = 0; i < s.traces.size(); ++i)
    if (s.traces[i].after) after |= Bits{1} << i;

  codegen::Lines line;
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
    const std::vector<std::string> results = codegen::print_body(line, graph, sources);
    for (std::size_t k = 0; k < changed.size(); ++k)
      line("    {}[{}] = {};", of_traces ? "traces" : "states", changed[k], results[k]);
    if (sends) line("    sent = {};", results.back());
  }
  line("  }}");
  line("}};");
  line("}}  // namespace spikeforge");
  return line.take();
}

}  // namespace

bool has_part(const graph::Synapse& synapse, PlasticPart part, std::size_t signal) {
  if (part == PlasticPart::fired || part == PlasticPart::sending_pre) return true;
  if (part == PlasticPart::refresh) return synapse.states_decay();
  const graph::SynapseBlock* const block = block_of(synapse, part, signal);
  if (block == nullptr) return false;
  return is_of_traces(part) ? changes_traces(synapse, *block) : !block->states.empty();
}

jit::KernelSource print_source(const graph::Synapse& synapse, PlasticPart part, std::size_t signal, DType weight) {
  constexpr const char* names[] = {"fired",       "pre",    "sending_pre", "pre_traces", "post",
                                   "post_traces", "signal", "each_step",   "refresh"};
  const std::string name = fmt::format("plastic_{}", names[static_cast<int>(part)]);
  const bool lists = part == PlasticPart::fired;
  const bool of_traces = is_of_traces(part);
  const char* const arithmetic = cuda_name(compute_type(weight));
  const std::string call =
      lists       ? "list_fired"
      : of_traces ? fmt::format("plastic_traces<Block<{0}>, {0}>", arithmetic)
                  : fmt::format("plastic_connections<Block<{0}>, {0}, {1}>", arithmetic, cuda_name(weight));
  const std::string block =
      lists ? "" : print_block(synapse, block_of(synapse, part, signal), of_traces, part == PlasticPart::sending_pre);
  return {.name = name,
          .entry = name,
          .text = fmt::format(R"(#include <spikeforge/cuda/event/plastic.cuh>
{block}namespace spikeforge {{
namespace event {{
extern "C" __global__ void __launch_bounds__({threads}) {name}(const {arguments} args) {{ {call}(args); }}
}}
}}
)",
                              fmt::arg("block", block), fmt::arg("threads", plastic_threads), fmt::arg("name", name),
                              fmt::arg("call", call),
                              fmt::arg("arguments", lists ? "FiredArguments" : "PlasticArguments"))};
}

}  // namespace spikeforge::event
