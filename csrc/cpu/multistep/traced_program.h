// The tapes of a traced cell, created once.
#pragma once

#include "csrc/base/views.h"
#include "csrc/cpu/multistep/tape.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spikeforge::cpu {

struct TracedProgram {
  explicit TracedProgram(const TracedCell& cell);

  // Returns the backward pass of a step, with the results grad_inputs, if they are wanted; grad_states; and, if
  // gradients of parameters are wanted, the gradients of the factors in `summed`.
  const Tape& backward(bool with_inputs, bool with_params) const { return backward_[with_inputs][with_params]; }

  std::size_t inputs, states, params, outputs, hoisted, factors;
  Tape prologue;
  Tape step;
  Tape advance;  // only the next states
  Tape epilogue;
  std::vector<double> initial;      // of each state, if none is given
  std::vector<std::size_t> summed;  // factors whose gradient is not always 0

  // True if hoisted value k differs between neurons: if it depends on a parameter that is a tensor, or on a draw.
  bool hoisted_varies(std::size_t k, std::span<const ParamView> params) const;

  // Return the neurons per tile, such that the rows of a step stay in a cache near the processor. `segment` is the
  // number of steps whose states a backward pass stores.
  std::int64_t forward_tile(DType type) const;
  std::int64_t backward_tile(DType type, std::int64_t segment) const;

 private:
  explicit TracedProgram(const autodiff::Stages& stages);

  Tape backward_[2][2];
  std::vector<std::vector<std::size_t>> hoisted_from_;  // the parameters on which each depends
  std::vector<bool> hoisted_drawn_;
};

// Returns the program of a cell, which is created once.
const TracedProgram& program_of(const TracedCell& cell);

}  // namespace spikeforge::cpu
