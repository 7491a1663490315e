// Spikes of a network that several ranks share: what a rank tells the others of some steps, and what it does with what
// all have told. Their lists are in any order, and so are the sums.
#pragma once

#include <spikeforge/cuda/network.cuh>

namespace spikeforge {
namespace network {

// Lists those that fired, which are few: a thread looks at as many neurons at once as it can.
__device__ __forceinline__ void tell(const ExchangeArguments& a) {
  const Int count = a.steps * a.network.size;
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  const auto list = [&](Int place) {
    const unsigned at = atomicAdd(a.own, 1u);
    if (at < a.room) a.own[1 + at] = static_cast<unsigned>(place);
  };
  const auto look = [&](Int first, unsigned long long of_eight) {
    for (int i = 0; of_eight != 0; ++i, of_eight >>= 8)
      if ((of_eight & 255) != 0) list(first + i);
  };
  const Int own = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool is_aligned = reinterpret_cast<unsigned long long>(a.fired) % 16 == 0;
  const Int whole = is_aligned ? count / 16 : 0;
  for (Int i = own; i < whole; i += threads) {
    const ulonglong2 both = reinterpret_cast<const ulonglong2*>(a.fired)[i];
    look(16 * i, both.x);
    look(16 * i + 8, both.y);
  }
  for (Int i = 16 * whole + own; i < count; i += threads)
    if (a.fired[i] != 0) list(i);
}

// By warps, a row in `pieces`.
template <class Matrix>
__device__ __forceinline__ void send(const ExchangeArguments& a) {
  const Sender<Matrix> sender(a.network);
  const int pieces = static_cast<int>(a.network.pieces), slots = static_cast<int>(a.network.slots);
  const Int warps = static_cast<Int>(gridDim.x) * (blockDim.x / 32);
  Int task = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const Int first_step = *a.network.step - a.steps;
  for (Int rank = 0; rank < a.ranks; ++rank) {
    const unsigned* const list = a.all + rank * (1 + a.room);
    const Int told = list[0], neurons = a.neurons[rank];
    if (told > a.room && blockIdx.x == 0 && threadIdx.x == 0) atomicMax(a.most, static_cast<unsigned>(told));
    const Int tasks = (told < a.room ? told : a.room) * pieces;
    for (; task < tasks; task += warps) {
      const unsigned place = list[1 + task / pieces];
      const Int step = place / neurons;
      const Spike spike = sender.row_of(a.numbers[rank * a.most_neurons + (place - step * neurons)]);
      const int now = static_cast<int>((first_step + step) % slots);
      sender.template send<Part::all>(spike, static_cast<int>(task % pieces) * 32 + (threadIdx.x & 31), pieces * 32,
                                      now);
    }
    task -= tasks;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) a.own[0] = 0;
}

}  // namespace network
}  // namespace spikeforge
