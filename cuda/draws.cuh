// Arguments of kernels whose cells draw random numbers, and the generator state of a thread's neurons.
//
// Short names: W neurons per thread.
#pragma once

#include "csrc/neuron/draws.h"

namespace spikeforge {

// Seed and offset are read from device memory, so that replays of a captured graph draw other numbers when they change.
// Neuron i in memory has the index of its position in the shape: see DrawsView of kernels/multistep/launch.h.
struct DrawArgs {
  const long long* seed;
  long long seed_number;
  const long long* offset;
  long long offset_number;
  long long fast, slow;
  long long first;

  __device__ __forceinline__ DoubleWord key() const { return seed != nullptr ? *seed : seed_number; }
  __device__ __forceinline__ DoubleWord first_step() const { return offset != nullptr ? *offset : offset_number; }
  __device__ __forceinline__ DoubleWord index_of(long long i) const {
    const long long row = i / fast, column = i % fast;
    return row / slow * (fast * slow) + column * slow + row % slow + first;
  }
};

template <class Args> struct WithDraws : Args { DrawArgs draws; };

// True if the cell draws random numbers.
template <class Cell, class = int> struct DrawsOf { static constexpr bool any = false; };
template <class Cell> struct DrawsOf<Cell, decltype(static_cast<int>(Cell::draws))> {
  static constexpr bool any = Cell::draws;
};

// The draws of a thread's W neurons. `in_order`: neurons are stored in the order of the shape, and the index of the
// first is a multiple of 4. Neighbours then begin at a multiple of W and share calls of Philox.
template <int W, bool in_order, bool neighbours> struct NeuronDraws {
  static constexpr bool share = in_order && neighbours && (W == 2 || W == 4);
  static constexpr int W_or_one = share ? 1 : W;
  DoubleWord key, first_step, index[W_or_one];

  template <class Neurons>
  __device__ __forceinline__ NeuronDraws(const DrawArgs& args, const Neurons& n)
      : key(args.key()), first_step(args.first_step()) {
#pragma unroll
    for (int k = 0; k < W_or_one; ++k) index[k] = in_order ? args.first + n.neuron(k) : args.index_of(n.neuron(k));
  }

  __device__ __forceinline__ Draws at(int k, long long t) const {
    const DoubleWord own = index[share ? 0 : k];
    const Word lane = static_cast<Word>(own) % 4 + (share ? k : 0);
    return {key, own / 4, W == 4 && share ? k : lane, first_step + t};
  }
};

}  // namespace spikeforge
