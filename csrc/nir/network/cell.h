// The computation of a node in a step, element by element, as neuron text (docs/neuron_text.md).
#pragma once
#include "csrc/nir/network/options.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge::nir {

// The options that a node's cell depends on, decided.
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
  std::vector<std::pair<std::string_view, Array>> params;  // the fields that it depends on
};

// For Scale, Threshold, I, LI, IF, LIF, CubaLI and CubaLIF; nothing for the others.
std::optional<Cell> cell_of(const Kind& kind, const CellOptions& options);

}  // namespace spikeforge::nir
