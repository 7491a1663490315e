// Cells from neuron text: what `run` looks up on every call.
#pragma once

#include <spikeforge/autodiff/stages.h>
#include <spikeforge/base/hash.h>
#include <spikeforge/graph/cell.h>
#include <spikeforge/kernels/multistep/cell.h>

#include <string>
#include <string_view>

namespace spikeforge {

class TracedCell : public Cell {
 public:
  // Throws TextError for a text that is no neuron, and GraphError for one that cannot be differentiated.
  explicit TracedCell(std::string_view text);

  CellText device_text(const CellForm& form) const override;

  const std::string text;
  const Hash128 hash;  // of the text
  const graph::Cell graph;
  const autodiff::Stages stages;
};

// The cell of a text, made when it is met first. Equal texts give the same cell, which is never destroyed. Later calls
// cost a hash of the text and a look-up without a lock. Throws what TracedCell does, and GraphError for one text too
// many.
const TracedCell& intern(std::string_view text);

}  // namespace spikeforge
