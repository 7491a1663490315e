// A neuron and the adjacent operations of its network as one cell: normalisation before it and a residual connection
// after it are then part of its pass over memory, on every device, and of its derivatives.
#pragma once

#include "csrc/graph/cell.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace spikeforge::graph {

// How a layer uses a residual r. With a spike s the result is s + r, s r or (1 - s) r: SEW-ResNet's ADD, AND and IAND
// (Fang et al. 2021, "Deep residual learning in spiking neural networks", table 1). `membrane` adds r to the input of
// the neuron instead, and the sum is an additional output: MS-ResNet's shortcut (Hu et al. 2024, "Advancing spiking
// neural networks toward deep residual learning", figure 2).
enum class Residual : std::uint8_t { add, logical_and, inhibit, membrane };

// Parses "add", "and", "iand" or "membrane"; returns std::nullopt for another name.
std::optional<Residual> residual_of(std::string_view name);
std::string_view name_of(Residual residual);

struct Layer {
  // The first input x becomes (x - mean) * scale + shift: three parameters after those of the neuron.
  bool normalised = false;
  // For a normalised layer: an additional output, offset x + slope (x - mean)^2 / 2, with two additional parameters. An
  // upstream gradient of 1 for it adds offset + slope (x - mean) to that of x: the contribution of the statistics, if
  // they are those of x.
  bool with_statistics = false;
  // The residual of the first output or, for `membrane`, of the first input: one input after those of the neuron. The
  // sum of `membrane` is an output after those of the neuron.
  std::optional<Residual> residual;
};

// Returns the cell of the layer. Throws GraphError if it is too large.
Cell layer(const Cell& neuron, const Layer& around);

}  // namespace spikeforge::graph
