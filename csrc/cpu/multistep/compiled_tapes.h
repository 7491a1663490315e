// Tapes compiled by the machine's C++ compiler: the interpreter runs each as one instruction.
#pragma once

#include "csrc/cpu/kernels.h"
#include "csrc/kernels/multistep/traced_cell.h"

namespace spikeforge::cpu {

// Compiles the tapes at the first call for a cell and type, which waits for the compiler. The functions are valid as
// long as the cell exists. All are null if there is no compiler (host_compiler.h), or if it failed, which causes one
// warning: the interpreter then runs the instructions.
TapeFunctions compiled_forward(const TracedCell& cell, DType type);
TapeFunctions compiled_backward(const TracedCell& cell, DType type, bool with_inputs, bool with_params);

}  // namespace spikeforge::cpu
