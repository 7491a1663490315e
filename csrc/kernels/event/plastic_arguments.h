// Arguments of the kernels of plastic connections, shared by the host and the device: C++17 for the host compiler and
// NVRTC.
#pragma once

#include "csrc/kernels/event/arguments.h"

namespace spikeforge {
namespace event {

// The limits of a rule on a GPU, set by the size of kernel arguments.
constexpr int most_plastic_states = 8, most_plastic_traces = 16, most_plastic_params = 32, most_plastic_signals = 8;

struct PlasticArguments {
  // Lines are rows, or columns if the matrix is read by columns.
  Int lines, by_columns;
  const int* others;  // the other end of each place
  const void* indptr;
  Int wide_indptr;             // 1 if indptr is of Int, 0 if of int
  const Int* slots;            // the connection of each place, or null: its index
  const int* fired;            // the lines to process, or null: all
  const int* fired_count;      // the number of lines to process
  Int pieces;                  // into which a line is divided among warps
  const unsigned char* comes;  // null, or a flag that is 0 if the signal does not occur
  const unsigned* refused[2];  // null, or not 0 if an index of the matrix is out of range
  void* states[most_plastic_states];
  double log_factor[most_plastic_states], target[most_plastic_states];  // for states that decay
  unsigned* last;   // of each connection: the step of its decaying states; null: none decays
  const Int* step;  // on the device, or null: `now`
  Int now;
  void* traces[most_plastic_traces];
  double params[most_plastic_params];
  const void* signals[most_plastic_signals];  // null: 0
  Int signals_of_columns;                     // a bit for each: set if it has a value for each column
  void* sent;                                 // [columns], or null
};

// Lists the neurons on either side that fired: those whose byte is not 0.
struct FiredArguments {
  Int lines[2];
  const unsigned char* spikes[2];  // [lines]
  int* lists[2];                   // [lines]
  int* counts;                     // [2], initially 0
};

static_assert(sizeof(PlasticArguments) == (16 + 3 * most_plastic_states + most_plastic_traces + most_plastic_params +
                                           most_plastic_signals + 1) *
                                              8,
              "words without padding");

}  // namespace event
}  // namespace spikeforge
