#pragma once
#include "csrc/base/export.h"

#include <stdexcept>
#include <string>

namespace spikeforge::graph {

// A neuron that cannot be built. Exported, so that one thrown inside the library is caught by its type outside of it.
struct SPIKEFORGE_API GraphError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A neuron text that cannot be read. what() holds the position, the line itself and a caret below the place.
struct SPIKEFORGE_API TextError : GraphError {
  TextError(const std::string& message, int line, int column) : GraphError(message), line(line), column(column) {}

  int line;    // from 1
  int column;  // from 1, in bytes
};

}  // namespace spikeforge::graph
