// Batch normalisation by the statistics of the batch, fused with the multistep loop of the neuron, in one cooperative
// launch per pass. First, each block computes its tiles' part of two sums per channel. After a grid barrier, the blocks
// compute the channel constants of the loop from all parts. After a second barrier, the loop runs. The loop processes
// the neurons in reverse order, because those that the sums read last are still in the cache. No sum depends on the
// order in which blocks run.
//
// A Spec is the loop's (multistep.cuh), with neighbours, in_turns and one segment; its last parameters are
// graph::Layer's.
//
// Short names: F type of the arithmetic; W neurons per thread; S sums per channel; P parameters of the cell; U parts or
// rows in flight.
#pragma once

#include "csrc/kernels/layer/arguments.h"
#include "csrc/neuron/functions.h"
#include "cuda/grid_barrier.cuh"
#include "cuda/multistep/multistep.cuh"

namespace spikeforge {
namespace layers {

template <class Spec, class Tiles = ChannelTiles> struct NormaliseAndRunArgs {
  ForwardArgs<typename Spec::Cell> run;
  NormaliseArguments<Tiles> norm;
};

template <class Sums, class Gradient, class Tiles = ChannelTiles> struct NormaliseAndRunGradArgs {
  BackwardArgs<typename Sums::Cell> sums;
  BackwardArgs<typename Gradient::Cell> gradient;
  NormaliseGradArguments<Tiles> norm;
};

constexpr int block_of_tile = 256;

// Tiles of a block in one strip, and the thread's part of them: a loop down the strip, or up.
template <class Spec> struct Run {
  using Turns = typename Multistep<Spec>::Turns;
  int begin;   // of the strip, within the period
  int column;  // the thread's first neuron, in the period
  int turns;   // 0: the thread has no neurons
  Turns down;

  __device__ __forceinline__ Run(const ChannelTiles& tiles, int strip, int top, int bottom) {
    constexpr int W = Spec::width;
    const int thread = static_cast<int>(threadIdx.x), below = thread / tiles.across,
              right = thread - below * tiles.across;
    begin = strip * tiles.across * W;
    column = begin + right * W;
    const int first = top * tiles.down, row = first + below;
    const int end = bottom * tiles.down < tiles.rows ? bottom * tiles.down : tiles.rows;
    const bool is_there = below < tiles.down && row < end && column < tiles.period;
    turns = is_there ? (end - 1 - row) / tiles.down + 1 : 0;
    const long long period = tiles.period, neuron = row * period + column;
    down = {{neuron, neuron}, tiles.down * period, first * period, (end - first) * period};
  }

  __device__ __forceinline__ Turns up() const {
    const long long last = down.first.start + (turns - 1) * down.apart;
    return {{last, last}, -down.apart, down.low, down.count};
  }
};

// Calls use(run, index of the run) for each run of the block.
template <class Spec, class Use> __device__ __forceinline__ void for_runs(const ChannelTiles& tiles, Use&& use) {
  const int block = static_cast<int>(blockIdx.x), count = tiles.strips * tiles.depth;
  int tile = block * tiles.each;
  const int end = tile + tiles.each < count ? tile + tiles.each : count;
#pragma unroll 1
  for (int i = block * tiles.runs; tile < end; ++i) {
    const int strip = tile / tiles.depth, top = tile - strip * tiles.depth;
    const int bottom = tiles.depth < top + end - tile ? tiles.depth : top + end - tile;
    use(Run<Spec>(tiles, strip, top, bottom), i);
    tile += bottom - top;
  }
}

// The same in reverse order, from the last tile to the first.
template <class Spec, class Use>
__device__ __forceinline__ void for_runs_backwards(const ChannelTiles& tiles, Use&& use) {
  const int first = static_cast<int>(blockIdx.x) * tiles.each, count = tiles.strips * tiles.depth;
  int end = first + tiles.each < count ? first + tiles.each : count;
#pragma unroll 1
  while (end > first) {
    const int strip = (end - 1) / tiles.depth, left = strip * tiles.depth;
    const int top = first > left ? first - left : 0;
    use(Run<Spec>(tiles, strip, top, end - left));
    end = left + top;
  }
}

// Adds the threads' sums of their lanes to sums of channels, and stores these for the strip that starts at `begin`,
// [S, slots].
template <int S, class F, int W>
__device__ __forceinline__ void store_sums(const ChannelTiles& tiles, int begin, const F (&sums)[S][W], F* to) {
  __shared__ F of_lanes[S][block_of_tile * W];
  __shared__ F of_parts[S][block_of_tile];
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int k = 0; k < W; ++k) of_lanes[s][threadIdx.x * W + k] = sums[s][k];
  __syncthreads();
  const int slots = tiles.slots, parts = tiles.parts, width = tiles.across * W;
  const int at_once = block_of_tile / parts, part = static_cast<int>(threadIdx.x) / at_once;
  for (int slot0 = 0; slot0 < slots; slot0 += at_once) {
    const int slot = slot0 + static_cast<int>(threadIdx.x) % at_once;
    // The slot's channel in each row of a tile.
    const int from = (begin / tiles.inner + slot) * tiles.inner - begin;
    const int left = from > 0 ? from : 0, right = from < width - tiles.inner ? from + tiles.inner : width;
    const int length = right - left;
    F sum[S] = {};
    if (slot < slots && length > 0) {
      const int numbers = length * tiles.down;
      for (int i = part; i < numbers; i += parts) {
        const int row = length == 1 ? i : i / length, at = row * width + left + (i - row * length);
#pragma unroll
        for (int s = 0; s < S; ++s) sum[s] += of_lanes[s][at];
      }
    }
#pragma unroll
    for (int s = 0; s < S; ++s) of_parts[s][threadIdx.x] = sum[s];
    for (int half = parts / 2; half > 0; half /= 2) {
      __syncthreads();
      if (part < half)
#pragma unroll
        for (int s = 0; s < S; ++s) of_parts[s][threadIdx.x] += of_parts[s][threadIdx.x + half * at_once];
    }
    if (part == 0 && slot < slots)
#pragma unroll
      for (int s = 0; s < S; ++s) to[s * slots + slot] = of_parts[s][threadIdx.x];
    __syncthreads();
  }
}

// Calls use(channel, know(channel), sums of the channel over all runs) for channels [begin, end), in one of the threads
// that share the channel. These are whole warps, as many for each of `most` channels, so that blocks which add up the
// same sum get the same bits. `know` loads other values of the channel while the parts of the sums are in flight.
template <int S, int W, class F, class Know, class Use>
__device__ __forceinline__ void for_channels(const ChannelTiles& tiles, const F* partial, int begin, int end, int most,
                                             Know&& know, Use&& use) {
  constexpr int warps = block_of_tile / 32, U = 2;  // parts in flight; more would cost registers of the loops
  __shared__ F of_warps[warps][S];
  int parts = block_of_tile;  // threads of a channel
  while (parts > 32 && block_of_tile / parts < most) parts /= 2;
  const int width = tiles.across * W, beside = block_of_tile / parts;
  const int part = static_cast<int>(threadIdx.x) % parts, warp = static_cast<int>(threadIdx.x) / 32;
  for (int c0 = begin; c0 < end; c0 += beside) {
    const int c = c0 + static_cast<int>(threadIdx.x) / parts, there = c < end ? c : begin;
    const auto known = know(there);
    const int left = there * tiles.inner / width, right = ((there + 1) * tiles.inner - 1) / width;
    const int count = c < end ? (right - left + 1) * tiles.blocks_of_strip : 0;
    F sum[S] = {};
    for (int i0 = part; i0 < count; i0 += U * parts) {
      F values[U][S] = {};
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int i = i0 + u * parts;
        const int beyond = left == right ? 0 : i / tiles.blocks_of_strip, strip = left + beyond;
        const int top = strip * tiles.depth;
        const int block = top / tiles.each + (i - beyond * tiles.blocks_of_strip), first = block * tiles.each;
        if (i >= count || first >= top + tiles.depth) continue;
        const int run = block * tiles.runs + strip - first / tiles.depth;
        const F* const from =
            partial + static_cast<long long>(run) * S * tiles.slots + (there - strip * width / tiles.inner);
#pragma unroll
        for (int s = 0; s < S; ++s) values[u][s] = __ldcg(from + s * tiles.slots);
      }
#pragma unroll
      for (int u = 0; u < U; ++u)
#pragma unroll
        for (int s = 0; s < S; ++s) sum[s] += values[u][s];
    }
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) sum[s] += __shfl_xor_sync(~0u, sum[s], distance);
      if (threadIdx.x % 32 == 0) of_warps[warp][s] = sum[s];
    }
    __syncthreads();
    if (part < 32) {
#pragma unroll
      for (int s = 0; s < S; ++s) {
        sum[s] = part < parts / 32 ? of_warps[warp + part][s] : F(0);
#pragma unroll
        for (int distance = warps / 2; distance > 0; distance /= 2) sum[s] += __shfl_xor_sync(~0u, sum[s], distance);
      }
      if (part == 0 && c < end) use(c, known, sum);
    }
    __syncthreads();
  }
}

// Called after the sums: each block computes the constants of its channels from them; if that were too many, each block
// computes those of a few channels for all blocks.
template <int S, int W, class F, class Know, class Use>
__device__ __forceinline__ void finish_channels(const ChannelTiles& tiles, const F* partial, Know&& know, Use&& use) {
  wait_for_grid();
  int begin, end, most = tiles.own_channels;
  if (most > 0) {
    const int width = tiles.across * W, first = static_cast<int>(blockIdx.x) * tiles.each;
    begin = first / tiles.depth * width / tiles.inner;
    end = (((first + tiles.each - 1) / tiles.depth + 1) * width - 1) / tiles.inner + 1;
  } else {
    most = (tiles.channels + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    begin = static_cast<int>(blockIdx.x) * most;
    end = begin + most;
  }
  for_channels<S, W>(tiles, partial, begin, end < tiles.channels ? end : tiles.channels, most, know, use);
  if (tiles.own_channels == 0) wait_for_grid();
}

// x's elements in the turns of a thread, in order.
template <class Spec> struct Elements {
  using Input = typename Spec::Input;
  const Input* at;
  long long time_stride, to_next_turn;
  int steps, t = 0;

  template <class Args>
  __device__ __forceinline__ Elements(const Args& a, const typename Multistep<Spec>::Turns& turns)
      : at(static_cast<const Input*>(a.x[0].data) + turns.first.start),
        time_stride(a.x[0].time_stride),
        to_next_turn(turns.apart - (a.steps - 1) * a.x[0].time_stride),
        steps(static_cast<int>(a.steps)) {}

  __device__ __forceinline__ const Input* next() {
    const Input* const now = at;
    const bool is_last = ++t == steps;
    at += is_last ? to_next_turn : time_stride;
    t = is_last ? 0 : t;
    return now;
  }
};

// The channel of each of several neighbouring neurons.
struct ChannelOfNeuron {
  int inner, channel, within;

  __device__ __forceinline__ ChannelOfNeuron(const ChannelTiles& tiles, int column)
      : inner(tiles.inner), channel(column / inner), within(column - channel * inner) {}

  __device__ __forceinline__ int next() {
    const int now = channel;
    if (++within == inner) {
      within = 0;
      ++channel;
    }
    return now;
  }
};

template <class F> __device__ __forceinline__ F middle(F a, F b, F c) {
  return maximum(minimum(a, b), minimum(maximum(a, b), c));
}

// A value near a channel's mean: the median of three distant values, so that an outlier is not chosen.
template <class Spec>
__device__ __forceinline__ typename Spec::Compute near_mean(const NormaliseAndRunArgs<Spec>& a, int channel) {
  using F = typename Spec::Compute;
  const auto* const x =
      static_cast<const typename Spec::Input*>(a.run.x[0].data) + static_cast<long long>(channel) * a.norm.tiles.inner;
  const long long* const at = a.norm.samples;
  return middle(convert<F>(x[at[0]]), convert<F>(x[at[1]]), convert<F>(x[at[2]]));
}

// The sums of x - K and of its square, with K near the mean. Sums of x and its square would cancel.
template <class Spec>
__device__ __forceinline__ void add_up(const NormaliseAndRunArgs<Spec>& a, const Run<Spec>& run,
                                       typename Spec::Compute (&sums)[2][Spec::width]) {
  using F = typename Spec::Compute;
  using Neurons = Lanes<Spec::width, true>;
  constexpr int W = Spec::width, U = 32 / static_cast<int>(W * sizeof(typename Spec::Input));  // in flight, twice
  using Values = Pack<typename Spec::Input, W, true>;
  Elements<Spec> x(a.run, run.down);
  long long left = run.turns * a.run.steps;
  Values now[U], next[U];
  const auto load = [&](Values(&to)[U]) {
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (u < left) to[u] = Neurons::load(x.next());
  };
  load(now);
  F near[W];
  ChannelOfNeuron channel(a.norm.tiles, run.column);
#pragma unroll
  for (int k = 0; k < W; ++k) near[k] = near_mean(a, channel.next());
  while (left > 0) {
    const long long these = left;
    left -= U;
    load(next);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      F values[W];
      now[u].unpack(values);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const F d = u < these ? values[k] - near[k] : F(0);
        sums[0][k] += d;
        sums[1][k] += d * d;
      }
      now[u] = next[u];
    }
  }
}

template <class Spec> __device__ __forceinline__ void normalise_and_run(const NormaliseAndRunArgs<Spec>& a) {
  using F = typename Spec::Compute;
  constexpr int W = Spec::width;
  const NormaliseArguments<ChannelTiles>& norm = a.norm;
  F* const partial = static_cast<F*>(norm.partial);
  for_runs<Spec>(norm.tiles, [&](const Run<Spec>& run, int i) {
    F sums[2][W] = {};
    if (run.turns > 0) add_up(a, run, sums);
    store_sums(norm.tiles, run.begin, sums, partial + i * 2ll * norm.tiles.slots);
  });
  struct Known {
    F near, weight, bias;
  };
  const auto know = [&](int c) {
    const auto load = [&](const void* from, F otherwise) {
      return from != nullptr ? static_cast<const F*>(from)[c] : otherwise;
    };
    return Known{near_mean(a, c), load(norm.weight, F(1)), load(norm.bias, F(0))};
  };
  finish_channels<2, W>(norm.tiles, partial, know, [&](int c, const Known& known, const F(&sum)[2]) {
    const F share = static_cast<F>(norm.share);
    const F m = sum[0] * share, v = sum[1] * share - m * m;
    const F mean = known.near + m, var = v < F(0) ? F(0) : v;
    const F rstd = F(1) / sqrt(var + static_cast<F>(norm.eps));
    const auto store = [&](void* to, F value) { static_cast<F*>(to)[c] = value; };
    store(norm.mean, mean);
    store(norm.var, var);
    store(norm.center, mean);
    store(norm.rstd, rstd);
    store(norm.scale, rstd * known.weight);
    store(norm.shift, known.bias);
  });
  for_runs_backwards<Spec>(norm.tiles, [&](const Run<Spec>& run) {
    if (run.turns > 0) Multistep<Spec>::forward(a.run, run.up());
  });
}

// The parameters with gradients, which are sums over channels; scale and shift are the last.
template <class Spec> __device__ constexpr int wanted_params() {
  int count = 0;
  for (int j = 0; j < Spec::Cell::n_params; ++j) count += Spec::wants_grad_param(j);
  return count;
}

// The loop runs twice: first for the sums, which are the gradients by scale, shift and the neuron's other parameters,
// and then for the gradient of x.
template <class Sums, class Gradient>
__device__ __forceinline__ void normalise_and_run_grad(const NormaliseAndRunGradArgs<Sums, Gradient>& a) {
  using F = typename Sums::Compute;
  constexpr int W = Sums::width, P = Sums::Cell::n_params, S = wanted_params<Sums>();
  const NormaliseGradArguments<ChannelTiles>& norm = a.norm;
  F* const partial = static_cast<F*>(norm.partial);
  for_runs<Sums>(norm.tiles, [&](const Run<Sums>& run, int i) {
    F sums[S][W] = {};
    const auto take = [&](const typename Multistep<Sums>::Gradients& grad) {
      int s = 0;
#pragma unroll
      for (int j = 0; j < P; ++j) {
        if (!Sums::wants_grad_param(j)) continue;
#pragma unroll
        for (int k = 0; k < W; ++k) sums[s][k] = grad.param[k][j];
        ++s;
      }
    };
    if (run.turns > 0) Multistep<Sums>::backward(a.sums, run.down, take);
    store_sums(norm.tiles, run.begin, sums, partial + static_cast<long long>(i) * S * norm.tiles.slots);
  });
  struct Known {
    F rstd, scale, grad_mean, grad_var;
  };
  const auto know = [&](int c) {
    const auto load = [&](const void* from) { return from != nullptr ? static_cast<const F*>(from)[c] : F(0); };
    return Known{load(norm.rstd), load(norm.scale), load(norm.grad_mean), load(norm.grad_var)};
  };
  finish_channels<S, W>(norm.tiles, partial, know, [&](int c, const Known& known, const F(&sum)[S]) {
    const F of_shift = sum[S - 1], of_weight = sum[S - 2] * known.rstd;
    const F share = static_cast<F>(norm.share);
    const auto store = [&](void* to, F value) { static_cast<F*>(to)[c] = value; };
    store(norm.grad_weight, of_weight);
    store(norm.grad_bias, of_shift);
    store(norm.offset, (known.grad_mean - of_shift * known.scale) * share);
    store(norm.slope, (F(2) * known.grad_var - of_weight * known.rstd * known.scale) * share);
    int s = 0;
#pragma unroll
    for (int j = 0; j < P - 2; ++j)
      if (Sums::wants_grad_param(j)) store(a.sums.grad_params[j], sum[s++]);
  });
  for_runs_backwards<Gradient>(norm.tiles, [&](const Run<Gradient>& run) {
    const auto drop = [](const typename Multistep<Gradient>::Gradients&) {};
    if (run.turns > 0) Multistep<Gradient>::backward(a.gradient, run.up(), drop);
  });
}

}  // namespace layers
}  // namespace spikeforge
