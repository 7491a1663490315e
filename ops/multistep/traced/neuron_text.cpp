#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/written_step.h"
#include "ops/common/library.h"

#include <c10/util/Exception.h>

namespace spikeforge::ops {
namespace {

std::string neuron_text(std::string_view neuron, std::string_view spike, const std::vector<std::string>& params,
                        const std::vector<std::string>& names, at::ArrayRef<double> numbers, std::string_view name,
                        bool detach_reset, bool decay_input, bool divides) {
  TORCH_CHECK_VALUE(names.size() == numbers.size(), "neuron_text(", neuron, "): names must be as many as numbers, but ",
                    names.size(), " names have ", numbers.size(), " numbers");
  NeuronDescription described{.neuron = std::string(neuron),
                              .name = std::string(name.empty() ? neuron : name),
                              .spike = std::string(spike),
                              .params = params,
                              .numbers = {},
                              .detach_reset = detach_reset,
                              .decay_input = decay_input,
                              .divides = divides};
  for (std::size_t i = 0; i < names.size(); ++i) described.numbers.emplace_back(names[i], numbers[i]);
  try {
    return graph::print(trace_neuron(described));
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, "neuron_text(", neuron, "): ", error.what());
  }
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { library.impl("neuron_text", TORCH_FN(neuron_text)); }

}  // namespace
}  // namespace spikeforge::ops
