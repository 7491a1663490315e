// The cells of neuron/loihi.h: two neurons, in three forms each. All values are int32, and they run forward only.
#pragma once

#include "csrc/kernels/multistep/cell.h"
#include "csrc/neuron/loihi.h"

namespace spikeforge {

class LoihiCell : public Cell {
 public:
  LoihiCell(bool ternary, LoihiForm form);

  CellText device_text(const CellForm& form) const override;

  const bool ternary;
  const LoihiForm form;
};

const LoihiCell& loihi_cell(bool ternary, LoihiForm form);

// Returns "plain", "reset" or "refractory".
const char* name_of(LoihiForm form);

}  // namespace spikeforge
