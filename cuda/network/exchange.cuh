// Delivery of the spikes of other ranks to this rank's neurons. Lists have no order, and neither have the sums.
#pragma once

#include "cuda/network/network.cuh"

namespace spikeforge {
namespace network {

// Called by warps, with a row in `pieces`.
template <class Matrix> __device__ __forceinline__ void send(const ExchangeArguments& a) {
  const Sender<Matrix> sender(a.network);
  const int pieces = static_cast<int>(a.network.pieces), slots = static_cast<int>(a.network.slots);
  const Int room = a.network.room, warps = static_cast<Int>(gridDim.x) * (blockDim.x / 32);
  Int task = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const Int first_step = *a.network.step - a.steps;
  const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
  for (Int rank = 0; rank < a.ranks; ++rank) {
    if (rank == a.left_out) continue;
    const unsigned* const list = a.all + rank * (1 + room);
    const Int received = list[0], neurons = a.neurons[rank];
    if (received > room && is_first) atomicMax(a.most, static_cast<unsigned>(received));
    const Int tasks = (received < room ? received : room) * pieces;
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
  if (is_first && a.received != nullptr) a.received[0] = 0;
}

}  // namespace network
}  // namespace spikeforge
