// The elementwise computation of a node in a step, as neuron text (docs/neuron_text.md).
#pragma once
#include "csrc/nir/network/options.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge::nir {

// The resolved options that a node's cell depends on.
struct CellOptions {
  double dt;
  Reset reset = Reset::file;
  IfScaling if_scaling = IfScaling::ode;
  Comparison comparison = Comparison::gt;
  CubaCurrent cuba_current = CubaCurrent::updated;
  Surrogate surrogate = {};
};

struct Cell {
  std::string text;
  std::vector<std::pair<std::string_view, Array>> params;  // the fields that the text depends on
};

// Returns the cell of a Scale, Threshold, I, LI, IF, LIF, CubaLI or CubaLIF, and nullopt for other nodes.
std::optional<Cell> cell_of(const Kind& kind, const CellOptions& options);

}  // namespace spikeforge::nir
