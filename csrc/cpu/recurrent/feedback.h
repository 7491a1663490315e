// The feedback to the neurons of a call at each step, through a matrix: the current in a recurrent layer's forward
// pass, the gradient of the output in its backward pass. Compiled once for each instruction set.
//
//   sum[t, b, j] = rounded(added[t, b, j] + sum over i of fed_back[t - delay, b, i] * matrix[i, j])
//
// The products are added in ascending order of i.
//
// If most elements of `fed_back` are zero, as for spikes, the rows of the matrix for the other elements are added;
// otherwise, a few samples are multiplied at once. A sum has the same bits in both cases, and for any tiles and
// threads.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/base/views.h"
#include "csrc/cpu/instruction_set.h"

#include <cstddef>
#include <cstdint>

namespace spikeforge::cpu {

// The matrix is stored in panels, [panels, rows, columns of a panel], in the type of the arithmetic. A panel has this
// number of bytes per row; the last panel is padded with zeros.
constexpr std::int64_t panel_bytes = 256;

struct Feedback {
  std::int64_t width = 0;  // neurons per sample
  std::int64_t delay = 1;  // in steps; negative in a backward pass
  const void* matrix = nullptr;
  SequenceView fed_back;  // [T, N] of the call's type
  SequenceView before;    // [delay, N]: the values from before the first step; null: zeros, as after the last step
  SequenceView added;     // [T, N] of the call's type; null: zeros
  std::int64_t steps = 0;
  void* sum = nullptr;  // [T, N] of the call's type, or one row that is overwritten in each step
  std::int64_t sum_stride = 0;

  std::size_t scratch_bytes = 0;
  // Computes the sum for the samples of the neurons [begin, end). Without `is_fed_back`, the sum consists of `added`
  // only.
  void (*run)(const Feedback&, std::int64_t t, std::int64_t begin, std::int64_t end, bool is_fed_back,
              void* scratch) = nullptr;
};

// Sets `run` to the function for sequences of a type, and `scratch_bytes` to the memory that it needs.
using ChooseFeedback = void (*)(DType type, Feedback& feedback);

// Once for each instruction set: feedback.cpp.
SPIKEFORGE_EACH_SET(void, choose_feedback, (DType type, Feedback& feedback));

// Calls choose_feedback of the instruction set in use.
void choose_feedback(DType type, Feedback& feedback);

}  // namespace spikeforge::cpu
