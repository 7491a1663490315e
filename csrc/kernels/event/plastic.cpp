#include "csrc/kernels/event/plastic.h"
#include "csrc/codegen/plastic_printer.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <string>

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

// A trace may become what it is.
bool changes_traces(const graph::Synapse& synapse, const graph::SynapseBlock& block) {
  for (std::size_t k = 0; k < block.traces.size(); ++k)
    if (block.graph.results()[block.states.size() + k] != synapse.states.size() + block.traces[k]) return true;
  return false;
}

bool is_of_traces(PlasticPart part) { return part == PlasticPart::pre_traces || part == PlasticPart::post_traces; }

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
  const std::string block = lists ? ""
                                  : codegen::print_block(synapse, block_of(synapse, part, signal), of_traces,
                                                         part == PlasticPart::sending_pre);
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
