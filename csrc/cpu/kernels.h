// The CPU's loops, compiled for one instruction set, and the choice among the sets at run time.
#pragma once

#include "csrc/cpu/recurrent/feedback.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/kernels/multistep/loihi_cells.h"
#include "csrc/neuron/neuron_kind.h"

#include <cstddef>
#include <cstdint>

namespace spikeforge::cpu {

struct TracedProgram;

// Does what running a tape's instructions over the elements [begin, end) of its rows does; `rows` are Row<T> of the
// arithmetic's type. Null: the instructions are run.
using TapeFunction = void (*)(const void* rows, std::int64_t begin, std::int64_t end);

struct TapeFunctions {
  TapeFunction step = nullptr, advance = nullptr, backward = nullptr;
};

// The context of a loop besides its launch.
struct LoopContext {
  // The program of a traced cell.
  const TracedProgram* program = nullptr;
  TapeFunctions functions;
  // For a recurrent call: the computation before each step. It writes the row of an input that the step then reads, or,
  // before the derivative of a step, the row of the gradient of the first output.
  const Feedback* feedback = nullptr;
};

// Runs the neurons [begin, end) through the whole sequence, of a recurrent call whole samples. `scratch`, on a cache
// line, holds what the function of that name says for so many neurons. False: one of their parameters is a tensor with
// a value that is not legal.
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

// One expansion per instruction set of the build: multistep/predefined_loops.cpp, multistep/traced_loops.cpp,
// loihi/loops.cpp.
#define SPIKEFORGE_LOOPS_OF(set)                           \
  Loop predefined_loop_##set(NeuronKind kind, DType type); \
  Loop traced_loop_##set(DType type);                      \
  Loop loihi_loop_##set(bool ternary, LoihiForm form);
SPIKEFORGE_LOOPS_OF(default)
SPIKEFORGE_LOOPS_OF(avx2)
SPIKEFORGE_LOOPS_OF(avx512)
#undef SPIKEFORGE_LOOPS_OF

// The widest set that this processor has, no wider than SPIKEFORGE_CPU_CAPABILITY (default, avx2, avx512) says.
const Loops& loops();
const char* capability();

}  // namespace spikeforge::cpu
