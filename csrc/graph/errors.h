#pragma once
#include "csrc/base/export.h"

#include <stdexcept>
#include <string>

namespace spikeforge::graph {

// Thrown for a neuron that cannot be built. Exported, so that code outside the library can catch it by its type.
struct SPIKEFORGE_API GraphError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown for a neuron text that cannot be parsed. what() contains the position, the line, and a caret below the
// position.
struct SPIKEFORGE_API TextError : GraphError {
  TextError(const std::string& message, int line, int column) : GraphError(message), line(line), column(column) {}

  int line;    // from 1
  int column;  // from 1, in bytes
};

}  // namespace spikeforge::graph
