// The cells of neurons.def.
#pragma once

#include "csrc/kernels/multistep/cell.h"
#include "csrc/neuron/neuron_kind.h"

namespace spikeforge {

class PredefinedCell : public Cell {
 public:
  explicit PredefinedCell(NeuronKind kind);

  CellText device_text(const CellForm& form) const override;
  CellForm canonical(CellForm form) const override;

  const NeuronKind kind;
};

const PredefinedCell& predefined_cell(NeuronKind kind);

}  // namespace spikeforge
