// The CPU's loops, compiled for one instruction set, and the choice among the sets at run time.
#pragma once

#include "csrc/cpu/instruction_set.h"
#include "csrc/cpu/recurrent/feedback.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/kernels/multistep/loihi_cells.h"
#include "csrc/neuron/neuron_kind.h"

#include <cstddef>
#include <cstdint>

namespace spikeforge::cpu {

struct TracedProgram;

// Executes a tape's instructions on the elements [begin, end) of its rows; `rows` are Row<T> of the arithmetic's type.
// Null: the instructions are interpreted.
using TapeFunction = void (*)(const void* rows, std::int64_t begin, std::int64_t end);

struct TapeFunctions {
  TapeFunction step = nullptr, advance = nullptr, backward = nullptr;
};

// The arguments of a loop in addition to its launch.
struct LoopContext {
  // The program of a traced cell.
  const TracedProgram* program = nullptr;
  TapeFunctions functions;
  // For a recurrent call: the computation before each step. It writes the row of an input that the step then reads, or,
  // before the derivative of a step, the row of the gradient of the first output.
  const Feedback* feedback = nullptr;
};

// The loops over time of a cell. forward() and backward() run the neurons [begin, end) through the whole sequence; for
// a recurrent call, these are whole samples. `scratch` is aligned to a cache line, and has the number of bytes that
// forward_scratch() or backward_scratch() returns for end - begin neurons. They return false if a tensor parameter of
// these neurons has an illegal value.
struct Loop {
  std::size_t (*forward_scratch)(const ForwardLaunch&, const LoopContext&, std::int64_t neurons);
  bool (*forward)(const ForwardLaunch&, const LoopContext&, std::int64_t begin, std::int64_t end, void* scratch);
  std::size_t (*backward_scratch)(const BackwardLaunch&, const LoopContext&, std::int64_t neurons);
  bool (*backward)(const BackwardLaunch&, const LoopContext&, std::int64_t begin, std::int64_t end, void* scratch);
};

struct Loops {
  Loop (*predefined)(NeuronKind, DType);
  Loop (*traced)(DType);
  Loop (*loihi)(bool ternary, LoihiForm);
};

SPIKEFORGE_EACH_SET(Loop, predefined_loop, (NeuronKind kind, DType type));
SPIKEFORGE_EACH_SET(Loop, traced_loop, (DType type));
SPIKEFORGE_EACH_SET(Loop, loihi_loop, (bool ternary, LoihiForm form));

// Returns the loops for the widest instruction set of this processor, limited by SPIKEFORGE_CPU_CAPABILITY (default,
// avx2, avx512).
const Loops& loops();
const char* capability();

}  // namespace spikeforge::cpu
