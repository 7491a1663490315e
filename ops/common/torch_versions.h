// Differences between the supported versions of torch. They are detected from torch's declarations, not from a version
// number, so that builds from torch's main branch work too.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace spikeforge::ops {

// Creates a node of autograd's graph with torch's type of ownership: c10::intrusive_ptr from 2.13 on; in older versions
// std::shared_ptr, whose deleter destroys a long graph without recursion.
template <class N, class... Arguments> auto make_node(Arguments&&... arguments) {
  static_assert(std::is_base_of_v<torch::autograd::Node, N>);
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, N>) {
    return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
  } else {
    // deleteNode is found by argument-dependent lookup, so this compiles if torch does not have it.
    return std::shared_ptr<N>(new N(std::forward<Arguments>(arguments)...), [](N* node) { deleteNode(node); });
  }
}

}  // namespace spikeforge::ops
