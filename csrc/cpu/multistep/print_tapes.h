// Tapes as C++ for the host compiler at run time: each becomes one loop, whose intermediate values stay in registers.
// The operations are those of the interpreter (operations.h), so the results have the same bits.
#pragma once

#include "csrc/cpu/multistep/tape.h"
#include "csrc/kernels/multistep/launch.h"

#include <span>
#include <string>

namespace spikeforge::cpu {

struct NamedTape {
  std::string function;  // an identifier
  const Tape* tape;
};

// Prints functions extern "C" void <function>(const void* rows, std::int64_t begin, std::int64_t end), which execute
// the tape's instructions on the elements [begin, end) of the rows, but do not write temporaries. `type` is the type of
// the arithmetic, f32 or f64.
std::string print_tapes(std::span<const NamedTape> tapes, DType type);

}  // namespace spikeforge::cpu
