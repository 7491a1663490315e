// Tapes that the machine's C++ compiler has compiled: the interpreter runs them as one instruction.
#pragma once

#include "csrc/cpu/kernels.h"
#include "csrc/kernels/multistep/traced_cell.h"

namespace spikeforge::cpu {

// Made at the first call for a cell and type, which waits for the compiler; good for as long as the cell. All null
// where there is no compiler (host_compiler.h), or where it failed, which a warning says once: the interpreter then
// runs the instructions.
TapeFunctions compiled_forward(const TracedCell& cell, DType type);
TapeFunctions compiled_backward(const TracedCell& cell, DType type, bool with_inputs, bool with_params);

}  // namespace spikeforge::cpu
