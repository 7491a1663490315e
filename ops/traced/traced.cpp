#include <spikeforge/graph/text.h>
#include <spikeforge/ops/traced.h>
#include <spikeforge/ops/traced/arguments.h>

namespace spikeforge {

Neuron::Neuron(std::string text) : text_(std::move(text)) { ops::cell_of(text_, "Neuron"); }

Neuron::Neuron(const graph::Cell& cell) : Neuron(graph::print(cell)) {}

std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> Neuron::operator()(at::TensorList inputs,
                                                                                at::TensorList states,
                                                                                at::TensorList params,
                                                                                bool store_states) const {
  static const auto op = ops::traced::find<ops::traced::Run>("spikeforge::run");
  return op.call(text_, inputs, states, params, store_states);
}

std::string Neuron::print_cuda(c10::ScalarType dtype) const { return ops::print_cuda(text_, dtype); }

}  // namespace spikeforge
