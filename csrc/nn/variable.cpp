#include "csrc/nn/internal/variable.h"
#include "csrc/nn/composite.h"

#include <algorithm>

namespace spikeforge::nn {

Variable find_variable(const torch::nn::Module& root, const std::string& name) {
  if (const auto* network = dynamic_cast<const CompositeImpl*>(&root))
    if (const std::string* variable = network->variable_of(name)) return find_variable(root, *variable);

  const std::size_t dot = name.find('.');
  if (dot != std::string::npos) {
    const auto children = root.named_children();
    const auto* child = children.find(name.substr(0, dot));
    return child ? find_variable(**child, name.substr(dot + 1)) : Variable();
  }
  if (const auto* stateful = dynamic_cast<const Stateful*>(&root)) {
    const Names states = stateful->state_names();
    const auto found = std::find(states.begin(), states.end(), name);
    if (found != states.end()) {
      auto* owner = const_cast<Stateful*>(stateful);  // NOLINT: callers have write access
      return {owner, static_cast<std::size_t>(found - states.begin()), {}};
    }
  }
  const auto parameters = root.named_parameters(/*recurse=*/false);
  if (const at::Tensor* parameter = parameters.find(name)) return {nullptr, 0, *parameter};
  const auto buffers = root.named_buffers(/*recurse=*/false);
  if (const at::Tensor* buffer = buffers.find(name)) return {nullptr, 0, *buffer};
  return {};
}

}  // namespace spikeforge::nn
