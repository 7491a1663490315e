// CompositeImpl::step_of, for tensors and for their names in a script.
#pragma once

#include "csrc/nn/composite.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace spikeforge::nn {

inline bool is_empty(const at::Tensor& value) { return !value.defined(); }
inline bool is_empty(const std::string& value) { return value.empty(); }

template <class Value>
Value CompositeImpl::step_of(
    int edge, const std::vector<int>& nodes, const Known<Value>& known,
    const std::function<std::vector<Value>(const Node&, const std::vector<Value>&)>& call) const {
  std::map<int, std::vector<Value>> found;
  const auto step = [&](int e) {
    Value value = known(e);
    const Port from = edges_[e].from;
    if (is_empty(value) && found.contains(from.node)) value = found.at(from.node)[from.index];
    return value;
  };
  const auto is_found = [&](int e) { return !is_empty(step(e)); };
  for (bool progress = true; progress && !is_found(edge);) {
    progress = false;
    for (const int number : nodes) {
      if (found.contains(number) || is_found(edge)) continue;
      const Node& node = nodes_[number];
      std::vector<Value> inputs;
      for (const auto& edges : node.edges_into)
        if (const auto first = std::ranges::find_if(edges, is_found); first != edges.end())
          inputs.push_back(step(*first));
      if (inputs.size() < node.inputs.size()) continue;
      found[number] = call(node, inputs);
      progress = true;
    }
  }
  return step(edge);
}

}  // namespace spikeforge::nn
