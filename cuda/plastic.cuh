// Connections that learn: those of the neurons that fired, or all. Block is what happens to one of them, as
// codegen/plastic_printer.h prints it; F is the arithmetic's type, W that of the weights.
#pragma once

#include <spikeforge/kernels/event/plastic_arguments.h>
#include <spikeforge/cuda/event.cuh>

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

// The first state is of the weights' type, the others of the arithmetic's.
template <class F, class W>
__device__ __forceinline__ F load_state(const PlasticArguments& a, int s, Int connection) {
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

template <class Block, class F>
__device__ __forceinline__ void load_params(const PlasticArguments& a, F* params) {
#pragma unroll
  for (int i = 0; i < Block::n_params; ++i) params[i] = static_cast<F>(a.params[i]);
}

constexpr int count_bits(unsigned bits) { return bits == 0 ? 0 : static_cast<int>(bits & 1) + count_bits(bits >> 1); }

// Connections of a lane whose numbers are all asked for before the first is computed: as many as fit registers.
template <class Block, class F>
constexpr int plastic_together() {
  const int numbers = count_bits(Block::reads_states | Block::changes_states | Block::decaying) +
                      count_bits(Block::reads_traces) + count_bits(Block::reads_signals);
  const int words = numbers * static_cast<int>(sizeof(F) / 4);
  return words <= 3 ? 4 : words <= 6 ? 2 : 1;
}

// The numbers of a connection, which run() changes.
template <class Block, class F>
struct PlasticConnection {
  Int slot, row, column;
  F states[Block::n_states + 1], traces[Block::n_traces + 1], signals[Block::n_signals + 1];
  unsigned last;
};

template <class Block, class F, class W>
__device__ __forceinline__ void load_connection(const PlasticArguments& a, PlasticConnection<Block, F>& c) {
  if (Block::decaying != 0) c.last = a.last[c.slot];
#pragma unroll
  for (int s = 0; s < Block::n_states; ++s)
    if (((Block::reads_states | Block::decaying) >> s & 1) != 0) c.states[s] = load_state<F, W>(a, s, c.slot);
#pragma unroll
  for (int i = 0; i < Block::n_traces; ++i)
    if ((Block::reads_traces >> i & 1) != 0)
      c.traces[i] = static_cast<const F*>(a.traces[i])[(Block::traces_after >> i & 1) != 0 ? c.column : c.row];
#pragma unroll
  for (int i = 0; i < Block::n_signals; ++i) {
    if ((Block::reads_signals >> i & 1) == 0) continue;
    const F* const signal = static_cast<const F*>(a.signals[i]);
    c.signals[i] = signal == nullptr ? F(0) : signal[(a.signals_of_columns >> i & 1) != 0 ? c.column : 0];
  }
}

template <class Block, class F, class W>
__device__ __forceinline__ void change_connection(const PlasticArguments& a, const F* params, unsigned now,
                                                  PlasticConnection<Block, F>& c) {
  if (Block::decaying != 0 && now != c.last) {
    const unsigned elapsed = now - c.last;
#pragma unroll
    for (int s = 0; s < Block::n_states; ++s) {
      if ((Block::decaying >> s & 1) == 0) continue;
      const F left = static_cast<F>(::exp(a.log_factor[s] * elapsed)), target = static_cast<F>(a.target[s]);
      c.states[s] = target + (c.states[s] - target) * left;
    }
  }
  F sent = 0;
  Block::run(c.states, c.traces, params, c.signals, sent);
#pragma unroll
  for (int s = 0; s < Block::n_states; ++s)
    if (((Block::changes_states | Block::decaying) >> s & 1) != 0) store_state<F, W>(a, s, c.slot, c.states[s]);
  if (Block::decaying != 0) a.last[c.slot] = now;
  if (Block::sends) atomicAdd(static_cast<F*>(a.sent) + c.column, sent);
}

// A team of blocks takes 32 lines, one a lane. Those that fired make tasks, connections of one line that a warp has in
// flight at once, and the team's warps take the tasks in turn: few neurons fire, and each has many connections.
template <class Block, class F, class W>
__device__ __forceinline__ void plastic_connections(const PlasticArguments& a) {
  if (is_refused(a) || (a.comes != nullptr && *a.comes == 0)) return;
  constexpr int together = plastic_together<Block, F>();
  constexpr int task = 32 * together;
  F params[Block::n_params + 1];
  load_params<Block>(a, params);
  const unsigned now = static_cast<unsigned>(a.step != nullptr ? *a.step : a.now);
  const int lane = threadIdx.x % 32;
  const Int groups = (a.lines + 31) / 32, blocks = gridDim.x;
  const Int team = blocks > groups ? blocks / groups : 1, teams = blocks / team;
  const Int warp = (blockIdx.x % team * blockDim.x + threadIdx.x) / 32, warps = team * blockDim.x / 32;
  if (blockIdx.x >= teams * team) return;
  for (Int group = blockIdx.x / team; group < groups; group += teams) {
    const Int own = 32 * group + lane;
    const bool fires = own < a.lines && (a.spikes == nullptr || a.spikes[own] != 0);
    if (!__any_sync(~0u, fires)) continue;
    const Int begin = fires ? plastic_begin(a, own) : 0, end = fires ? plastic_begin(a, own + 1) : 0;
    const Int tasks = (end - begin + task - 1) / task, until = sum_up_to_lane(tasks);
    const Int all = __shfl_sync(~0u, until, 31);
    for (Int t = warp; t < all; t += warps) {
      const int owner = __popc(__ballot_sync(~0u, until <= t));
      const Int line = 32 * group + owner, last = __shfl_sync(~0u, end, owner);
      const Int first = __shfl_sync(~0u, begin - task * (until - tasks), owner) + task * t + lane;
      PlasticConnection<Block, F> c[together];
      Int other[together];
#pragma unroll
      for (int u = 0; u < together; ++u) {
        const Int place = first + 32 * u;
        if (place >= last) continue;
        other[u] = a.others[place];
        c[u].slot = a.slots != nullptr ? a.slots[place] : place;
      }
#pragma unroll
      for (int u = 0; u < together; ++u) {
        if (first + 32 * u >= last) continue;
        c[u].row = a.by_columns != 0 ? other[u] : line;
        c[u].column = a.by_columns != 0 ? line : other[u];
        load_connection<Block, F, W>(a, c[u]);
      }
#pragma unroll
      for (int u = 0; u < together; ++u)
        if (first + 32 * u < last) change_connection<Block, F, W>(a, params, now, c[u]);
    }
  }
}

// Traces of the neurons that fired, a thread for each neuron.
template <class Block, class F>
__device__ __forceinline__ void plastic_traces(const PlasticArguments& a) {
  F params[Block::n_params + 1];
  load_params<Block>(a, params);
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int line = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; line < a.lines; line += threads) {
    if (a.spikes[line] == 0) continue;
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
