// The tapes of a traced cell, made once.
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

  // The backward pass of a step: grad_inputs, if they are wanted; grad_states; and, if gradients by parameters are
  // wanted, those by the factors in `summed`.
  const Tape& backward(bool with_inputs, bool with_params) const { return backward_[with_inputs][with_params]; }

  std::size_t inputs, states, params, outputs, hoisted, factors;
  Tape prologue;
  Tape step;
  Tape advance;  // the next states alone
  Tape epilogue;
  std::vector<double> initial;      // of each state, where none is given
  std::vector<std::size_t> summed;  // factors whose gradient is not always 0

  // True if hoisted number k differs between neurons: it depends on a parameter that is a tensor, or on a draw.
  bool hoisted_varies(std::size_t k, std::span<const ParamView> params) const;

  // Neurons per tile, so that the rows of a step stay in a cache near the processor. `segment` is the number of steps
  // whose states a backward pass stores.
  std::int64_t forward_tile(DType type) const;
  std::int64_t backward_tile(DType type, std::int64_t segment) const;

 private:
  explicit TracedProgram(const autodiff::Stages& stages);

  Tape backward_[2][2];
  std::vector<std::vector<std::size_t>> hoisted_from_;  // of which parameters
  std::vector<bool> hoisted_drawn_;
};

// That of a cell, made once.
const TracedProgram& program_of(const TracedCell& cell);

}  // namespace spikeforge::cpu
