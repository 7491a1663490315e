// Updates connections that learn: those of the neurons that fired, or all. Block is the printed update of one
// connection (csrc/kernels/event/plastic.cpp).
//
// Short names: F type of the arithmetic; W type of the weights.
#pragma once

#include "csrc/kernels/event/plastic_arguments.h"
#include "cuda/event/event.cuh"

namespace spikeforge {
namespace event {

__device__ __forceinline__ bool is_refused(const PlasticArguments& a) {
  for (const unsigned* const refused : a.refused)
    if (refused != nullptr && *refused != 0) return true;
  return false;
}

__device__ __forceinline__ Int plastic_begin(const PlasticArguments& a, Int line) {
  return a.wide_indptr != 0 ? static_cast<const Int*>(a.indptr)[line] : static_cast<const int*>(a.indptr)[line];
}

// The first state has the weights' type, the others the type of the arithmetic.
template <class F, class W> __device__ __forceinline__ F load_state(const PlasticArguments& a, int s, Int connection) {
  return s == 0 ? number_of<F>(static_cast<const W*>(a.states[0])[connection])
                : static_cast<const F*>(a.states[s])[connection];
}
template <class F, class W>
__device__ __forceinline__ void store_state(const PlasticArguments& a, int s, Int connection, F value) {
  if (s == 0)
    static_cast<W*>(a.states[0])[connection] = convert<W>(value);
  else
    static_cast<F*>(a.states[s])[connection] = value;
}

template <class Block, class F> __device__ __forceinline__ void load_params(const PlasticArguments& a, F* params) {
#pragma unroll
  for (int i = 0; i < Block::n_params; ++i) params[i] = static_cast<F>(a.params[i]);
}

// Writes the lines that fired, in any order, and their number.
__device__ __forceinline__ void list_fired(const FiredArguments& a) {
  __shared__ int of_warps[32];
  __shared__ int begin;
  const Int line = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int side = 0; side < 2; ++side) {
    const bool fires = line < a.lines[side] && a.spikes[side][line] != 0;
    const int until = sum_up_to_thread(fires ? 1 : 0, of_warps);
    if (threadIdx.x == blockDim.x - 1 && until > 0) begin = atomicAdd(a.counts + side, until);
    __syncthreads();
    if (fires) a.lists[side][begin + until - 1] = static_cast<int>(line);
  }
}

// Each line is divided among `pieces` warps, because few neurons fire and each has many connections. A warp processes
// 32 connections at a time, with a stride of 32 * pieces.
template <class Block, class F, class W>
__device__ __forceinline__ void plastic_connections(const PlasticArguments& a) {
  if (is_refused(a) || (a.comes != nullptr && *a.comes == 0)) return;
  F params[Block::n_params + 1];
  load_params<Block>(a, params);
  const unsigned now = static_cast<unsigned>(a.step != nullptr ? *a.step : a.now);
  const Int lane = threadIdx.x % 32, warps = static_cast<Int>(gridDim.x) * blockDim.x / 32;
  const Int tasks = (a.fired != nullptr ? *a.fired_count : a.lines) * a.pieces;
  for (Int task = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / 32; task < tasks; task += warps) {
    const Int line = a.fired != nullptr ? a.fired[task / a.pieces] : task / a.pieces;
    const Int end = plastic_begin(a, line + 1);
    for (Int place = plastic_begin(a, line) + 32 * (task % a.pieces) + lane; place < end; place += 32 * a.pieces) {
      const Int connection = a.slots != nullptr ? a.slots[place] : place;
      const Int other = a.others[place];
      const Int row = a.by_columns != 0 ? other : line, column = a.by_columns != 0 ? line : other;
      F states[Block::n_states + 1], traces[Block::n_traces + 1], signals[Block::n_signals + 1];
      const unsigned elapsed = Block::decaying != 0 ? now - a.last[connection] : 0;
#pragma unroll
      for (int s = 0; s < Block::n_states; ++s) {
        if (((Block::reads_states | Block::decaying) >> s & 1) == 0) continue;
        states[s] = load_state<F, W>(a, s, connection);
        if ((Block::decaying >> s & 1) != 0 && elapsed != 0) {
          const F left = static_cast<F>(::exp(a.log_factor[s] * elapsed)), target = static_cast<F>(a.target[s]);
          states[s] = target + (states[s] - target) * left;
        }
      }
#pragma unroll
      for (int i = 0; i < Block::n_traces; ++i)
        if ((Block::reads_traces >> i & 1) != 0)
          traces[i] = static_cast<const F*>(a.traces[i])[(Block::traces_after >> i & 1) != 0 ? column : row];
#pragma unroll
      for (int i = 0; i < Block::n_signals; ++i) {
        if ((Block::reads_signals >> i & 1) == 0) continue;
        const F* const signal = static_cast<const F*>(a.signals[i]);
        signals[i] = signal == nullptr ? F(0) : signal[(a.signals_of_columns >> i & 1) != 0 ? column : 0];
      }
      F sent = 0;
      Block::run(states, traces, params, signals, sent);
#pragma unroll
      for (int s = 0; s < Block::n_states; ++s)
        if (((Block::changes_states | Block::decaying) >> s & 1) != 0) store_state<F, W>(a, s, connection, states[s]);
      if (Block::decaying != 0) a.last[connection] = now;
      if (Block::sends) atomicAdd(static_cast<F*>(a.sent) + column, sent);
    }
  }
}

// Updates the traces of the neurons that fired, with one thread for each of them.
template <class Block, class F> __device__ __forceinline__ void plastic_traces(const PlasticArguments& a) {
  F params[Block::n_params + 1];
  load_params<Block>(a, params);
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  const Int count = *a.fired_count;
  for (Int i = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    const Int line = a.fired[i];
    F traces[Block::n_traces + 1];
#pragma unroll
    for (int i = 0; i < Block::n_traces; ++i)
      if ((Block::reads_traces >> i & 1) != 0) traces[i] = static_cast<const F*>(a.traces[i])[line];
    F sent = 0;
    Block::run(nullptr, traces, params, nullptr, sent);
#pragma unroll
    for (int i = 0; i < Block::n_traces; ++i)
      if ((Block::changes_traces >> i & 1) != 0) static_cast<F*>(a.traces[i])[line] = traces[i];
  }
}

}  // namespace event
}  // namespace spikeforge
