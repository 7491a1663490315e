// Arguments of the kernel that steps a network (cuda/network/network.cuh), shared by the host and the device: C++17 for
// the host compiler and NVRTC.
#pragma once

#include "csrc/kernels/event/arguments.h"

namespace spikeforge {
namespace network {

using Int = long long;

// The threads that send a spike's connections, and when. Connections of delay 1 must be sent in the step of the
// spike, before the barrier that ends it; longer delays may wait for the next step.
//   own             the block of the neuron that fired, immediately: for short rows
//   own_and_later   that block the connections of delay 1, and all blocks the others in the next step
//   later           all blocks in the next step: if no delay is 1
//   together        all blocks in the same step, after an additional barrier: if many delays are 1
//   in_rounds       all blocks in the next round of steps, with one barrier per round (cuda/network/rounds.cuh): if no
//                   delay is short
enum class Sending : unsigned char { own, own_and_later, later, together, in_rounds };

// The connections of a neuron that fired. The first `near` of them have delay 1; in rounds, `near` is the slot of the
// step of the spike. If the network has copies, the upper bits of `first` are the neuron's copy.
struct Spike {
  Int first;
  int count, near;
};
constexpr int copy_shift = 40;

// Poisson input, [columns] each: `rates` and `weights` in the type of the network, `none` the probability of no event.
// For a rate of many columns, there are thresholds, which start at the index in `tables`: a number is above k if the
// upper word of its random bits is above threshold k; if they are equal, the lower word decides. `key` is that of copy
// 0.
struct Drive {
  const void* rates;
  const double* none;
  const void* weights;
  const int* tables;  // or no_table; not_driven if the rate is 0
  const unsigned* thresholds;
  unsigned long long key;
  const unsigned long long* keys;  // [copies]
};
constexpr int no_table = -1, not_driven = -2;

// A recorded state of a neuron, whose index is that in the network: copies *from to to[row * stride].
struct Probe {
  Int neuron;
  const void* from;
  void* to;
  Int stride;
};

constexpr int most_drives = 4;

// Ranks whose GPUs write to each other's memory. In each step a rank writes the list of its neurons that fired to the
// others, into alternating lists, and then the length of the list. Each rank has
//   unsigned long long received[2][ranks]    by sender: the exchange's number << 32 | count
//   unsigned neurons[2][ranks][room]     indices in the whole network
struct Peers {
  Int ranks, rank;          // 0 ranks: no peers
  char* const* memory;      // [ranks]: the memory of each, as mapped on this rank
  Int room;                 // at least the number of neurons of any rank
  Int has_own;              // true if the first rows of the matrix, those of own neurons, have connections
  Int* exchanges;           // number of earlier exchanges; incremented at the end
  unsigned long long wait;  // nanoseconds until a rank counts as missing
  int* missing;             // set to its index + 1; then no rank is waited for
};
constexpr int most_peers = 32;

// Columns are inputs. Neuron j of copy c has index c copy_size + j, and its input k is column c copy_columns +
// k copy_size + j. Copies have the same matrix, whose rows and columns are those of copy 0.
struct Arguments {
  event::ProductArguments matrix;   // indices, indptr, weights, delays
  const int* near;                  // [size], if each connection has a separate delay
  Int steps, size, columns, slots;  // size and columns of all copies
  Int copy_size, copy_columns;
  void* ring;                  // [slots, columns]
  Int* step;                   // number of earlier steps; incremented at the end
  const void* current;         // [columns], or null
  void* spikes;                // [size]: the first output of the last step
  unsigned char* fired;        // [steps, size], or null
  unsigned* bits;              // [steps, (size + 31) / 32], 0 before the first step: the same as bits, or null
  Spike* lists;                // [3, size]: the spikes of steps t with the same t % 3; or [2, round size] in rounds
  int* counts;                 // [3]: the numbers of their spikes, 0 before the first step
  const Probe* probes;         // ordered by neurons
  Int probe_count, probe_row;  // the row of the first step
  Int own_threads;             // the threads of a block that step neurons; the others send later connections
  Int pieces;                  // into which a row is divided among warps
  Int round;                   // the steps of a round, for Sending::in_rounds
  // If the network has a part of the neurons of a larger one, of size `whole`: the index of each neuron in that
  // network, which selects its input, [size]; else null.
  const int* numbers;
  Int whole;
  // [1 + room], or null: the spikes for other ranks. The first element is their number, 0 before the first step; each
  // other element is step * size + neuron. Spikes after the capacity are only counted.
  unsigned* received;
  Int room;
  const unsigned char* silenced;  // [size], not 0 if the spikes of the neuron are suppressed; or null
  // Input of the caller, or null: [steps, input_columns]. The first step reads row input_row.
  const void* input;
  Int input_columns, input_row;
  const int* places;  // [columns]: the place of a column in a row of the input, or -1
  // For kernels that skip neurons that rest: the last step of each neuron in which something may change it, [size],
  // counted from *until_base; and the sum of the numbers of neurons that were stepped in each round.
  int* until;
  const Int* until_base;
  Int* stepped;
  Drive drives[most_drives];
  Peers peers;
};

// For cuda/network/exchange.cuh, which adds the contributions of the lists of all ranks to the ring.
struct ExchangeArguments {
  Arguments network;    // its matrix has a row for each neuron of the whole network
  Int steps;            // the distance from the first step of the lists to *network.step
  const unsigned* all;  // [ranks, 1 + room]
  const int* numbers;   // [ranks, most neurons of a rank]: their indices in the whole network
  const Int* neurons;   // [ranks]
  Int ranks, most_neurons;
  Int left_out;        // a rank whose spikes are sent elsewhere, or -1
  unsigned* received;  // its count is set to 0; or null
  unsigned* most;      // the maximum of its value and the length of the longest list
};

// For cuda/network/near_first.cuh: the matrix, which is modified, and the number of connections of delay 1 in each row.
struct NearArguments {
  const Int* indptr;  // [rows + 1]
  Int rows;
  int* indices;
  void* weights;
  void* delays;
  int* near;  // [rows]
};

static_assert(sizeof(Spike) == 16 && sizeof(Drive) == 7 * 8 && sizeof(Probe) == 4 * 8, "no padding");
static_assert(sizeof(NearArguments) == 6 * 8 &&
                  sizeof(Arguments) == sizeof(event::ProductArguments) + (7 + 8 + 18 + 7 * most_drives + 8) * 8 &&
                  sizeof(ExchangeArguments) == sizeof(Arguments) + 9 * 8,
              "words without padding");

}  // namespace network
}  // namespace spikeforge
