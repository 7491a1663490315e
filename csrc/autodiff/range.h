#pragma once

#include <cstddef>

namespace spikeforge::autodiff {

// Some arguments or results of a graph.
struct Range {
  std::size_t first, count;
};

}  // namespace spikeforge::autodiff
