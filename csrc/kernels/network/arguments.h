// Arguments of the kernel that steps a network (cuda/network/network.cuh), shared by the host and the device: C++17 for
// the host compiler and NVRTC.
#pragma once

#include "csrc/kernels/event/arguments.h"

namespace spikeforge {
namespace network {

using Int = long long;

// The threads that send a spike's connections, and the time. Connections of delay 1 have to be sent in the step of the
// spike, before the barrier that ends it; longer delays may wait for the next step.
//   own             the block of the neuron that fired, at once: for short rows
//   own_and_later   that block the connections of delay 1, and all blocks the rest in the next step
//   later           all blocks in the next step: if no delay is 1
//   together        all blocks at once, after a barrier of its own: if many delays are 1
enum class Sending : unsigned char { own, own_and_later, later, together };

// The connections of a neuron that fired, of which `near` have delay 1 and come first.
struct Spike {
  Int first;
  int count, near;
};

// Poisson input, [columns] each: `rates` and `weights` in the type of the network, `none` the probability of no event.
// For a rate that many columns have there are thresholds, from the place that `tables` names on: a number is above k if
// the upper word of its random bits is above threshold k; if they are equal, the lower word decides.
struct Drive {
  const void* rates;
  const double* none;
  const void* weights;
  const int* tables;  // or no_table; not_driven where the rate is 0
  const unsigned* thresholds;
  unsigned long long key;
};
constexpr int no_table = -1, not_driven = -2;

// A state of a neuron, counted within the network, that is recorded: to[row * stride] becomes what `from` holds.
struct Probe {
  Int neuron;
  const void* from;
  void* to;
  Int stride;
};

constexpr int most_drives = 4;

// Ranks whose GPUs write to each other's memory. In each step a rank writes the list of its neurons that fired to the
// others, into alternating lists, and then their number: each has
//   unsigned long long received[2][ranks]    by sender: the exchange's number << 32 | count
//   unsigned neurons[2][ranks][room]     indices in the whole network
struct Peers {
  Int ranks, rank;          // 0 ranks: none
  char* const* memory;      // [ranks]: that of each, as this one sees it
  Int room;                 // at least the neurons of any
  Int has_own;              // whether the first rows of the matrix, those of own neurons, have connections
  Int* exchanges;           // number of earlier exchanges; incremented at the end
  unsigned long long wait;  // nanoseconds, for a rank that does not come
  int* missing;             // then becomes its number + 1, and no rank is waited for
};
constexpr int most_peers = 32;

// Columns are inputs: column k size + j is input k of neuron j.
struct Arguments {
  event::ProductArguments matrix;  // indices, indptr, weights, delays
  const int* near;                 // [size], where each connection has a delay of its own
  Int steps, size, columns, slots;
  void* ring;                  // [slots, columns]
  Int* step;                   // number of earlier steps; incremented at the end
  const void* current;         // [columns], or null
  void* spikes;                // [size]: the first output of the last step
  unsigned char* fired;        // [steps, size], or null
  Spike* lists;                // [3, size]: of steps t with the same t % 3
  int* counts;                 // [3]: of their spikes, 0 before the first step
  const Probe* probes;         // by neurons
  Int probe_count, probe_row;  // their row of the first step
  Int own_threads;             // of a block, that step its neurons; the others send what goes later
  Int pieces;                  // in which a row is shared among warps
  // For a network with a part of the neurons of a larger one, of size `whole`: the index of each neuron there, which
  // selects its input, [size]; else null.
  const int* numbers;
  Int whole;
  // [1 + room], or null: the spikes that are sent to other ranks. Their number, and then for each its step times size,
  // plus its neuron; spikes beyond the capacity are only counted. 0 before the first step.
  unsigned* received;
  Int room;
  Drive drives[most_drives];
  Peers peers;
};

// For cuda/network/exchange.cuh: the contributions of the lists of all ranks, to the ring.
struct ExchangeArguments {
  Arguments network;    // its matrix has rows of the whole network's neurons
  Int steps;            // the distance from the first of them to *network.step
  const unsigned* all;  // [ranks, 1 + room]
  const int* numbers;   // [ranks, most neurons of a rank]: their indices in the whole network
  const Int* neurons;   // [ranks]
  Int ranks, most_neurons;
  Int left_out;        // a rank whose spikes are sent elsewhere, or -1
  unsigned* received;  // its count becomes 0; or null
  unsigned* most;      // becomes the longest list that there was, if that is more than it is
};

// For cuda/network/near_first.cuh: the matrix, which changes, and the number of connections of delay 1 in each row.
struct NearArguments {
  const Int* indptr;  // [rows + 1]
  Int rows;
  int* indices;
  void* weights;
  void* delays;
  int* near;  // [rows]
};

static_assert(sizeof(Spike) == 16 && sizeof(Drive) == 6 * 8 && sizeof(Probe) == 4 * 8, "no padding");
static_assert(sizeof(NearArguments) == 6 * 8 &&
                  sizeof(Arguments) == sizeof(event::ProductArguments) + (5 + 8 + 8 + 6 * most_drives + 8) * 8 &&
                  sizeof(ExchangeArguments) == sizeof(Arguments) + 9 * 8,
              "words without padding");

}  // namespace network
}  // namespace spikeforge
