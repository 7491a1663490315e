// A layer's normalisation by the statistics of its own input around the multistep loop, in one cooperative launch each
// way. Each block first adds up its tiles' part of two sums for each channel; behind a grid barrier blocks make of all
// parts what the loop needs to know of a channel; behind another the loop runs. It takes the same neurons the other way
// round: those that the sums met last are still in the cache. No sum depends on the order in which blocks come.
//
// A Spec is the loop's (multistep.cuh), with neighbours, in_turns and one segment; its last parameters are
// graph::Layer's.
#pragma once

#include <spikeforge/kernels/layer/arguments.h>
#include <spikeforge/neuron/functions.h>
#include <spikeforge/cuda/grid_barrier.cuh>
#include <spikeforge/cuda/multistep.cuh>

namespace spikeforge {
namespace layers {

template <class Spec>
struct NormaliseAndRunArgs {
  ForwardArgs<typename Spec::Cell> run;
  NormaliseArguments norm;
};

template <class Sums, class Gradient>
struct NormaliseAndRunGradArgs {
  BackwardArgs<typename Sums::Cell> sums;
  BackwardArgs<typename Gradient::Cell> gradient;
  NormaliseGradArguments norm;
};

constexpr int block_of_tile = 256;

// Where a tile lies, and the thread in it.
template <int W>
struct Tile {
  using Neurons = Lanes<W, true>;
  int begin;         // of the strip, in the period
  int column;        // the thread's first neuron, in the period
  long long neuron;  // and in all
  long long apart;   // neurons from a turn to the next
  bool is_there;     // whether it has any

  __device__ __forceinline__ Tile(const ChannelTiles& tiles, int number) {
    const int group = number / tiles.strips, strip = number - group * tiles.strips;
    const int thread = static_cast<int>(threadIdx.x), down = thread / tiles.across,
              right = thread - down * tiles.across;
    begin = strip * tiles.across * W;
    column = begin + right * W;
    const int row = group * tiles.down + down;
    neuron = static_cast<long long>(row) * tiles.period + column;
    apart = static_cast<long long>(tiles.groups) * tiles.down * tiles.period;
    is_there = down < tiles.down && row < tiles.rows && column < tiles.period;
  }

  __device__ __forceinline__ Neurons first() const { return {neuron, neuron}; }
  __device__ __forceinline__ long long turns(long long neurons) const { return (neurons - 1 - neuron) / apart + 1; }
  __device__ __forceinline__ Neurons last(long long neurons) const {
    const long long n = neuron + (turns(neurons) - 1) * apart;
    return {n, n};
  }
};

// The block's tiles in their order, or the other way round.
template <int W, class Use>
__device__ __forceinline__ void for_tiles(const ChannelTiles& tiles, Use&& use) {
  const int count = tiles.strips * tiles.groups;
#pragma unroll 1
  for (int i = blockIdx.x; i < count; i += gridDim.x) use(Tile<W>(tiles, i), i);
}
template <int W, class Use>
__device__ __forceinline__ void for_tiles_backwards(const ChannelTiles& tiles, Use&& use) {
  const int count = tiles.strips * tiles.groups, first = blockIdx.x, step = gridDim.x;
#pragma unroll 1
  for (int i = first < count ? first + (count - 1 - first) / step * step : -1; i >= 0; i -= step)
    use(Tile<W>(tiles, i));
}

// From each thread's sums of its lanes to those of the tile's channels, [S, slots].
template <int S, class F, int W>
__device__ __forceinline__ void store_sums(const ChannelTiles& tiles, const Tile<W>& tile, const F (&sums)[S][W],
                                           F* to) {
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
    // The slot's channel in each row of the tile.
    const int from = (tile.begin / tiles.inner + slot) * tiles.inner - tile.begin;
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

// Of channels [begin, end): use(channel, know(channel), its sums over all tiles) by one of the threads that share it,
// which are whole warps. `know` loads what it needs besides, while the sums' parts are on their way.
template <int S, int W, class F, class Know, class Use>
__device__ __forceinline__ void for_channels(const ChannelTiles& tiles, const F* partial, int begin, int end,
                                             Know&& know, Use&& use) {
  constexpr int warps = block_of_tile / 32, U = 2;  // parts on their way; more cost the loops registers
  __shared__ F of_warps[warps][S];
  int parts = block_of_tile;  // threads of a channel
  while (parts > 32 && block_of_tile / parts < end - begin) parts /= 2;
  const int width = tiles.across * W, beside = block_of_tile / parts;
  const int part = static_cast<int>(threadIdx.x) % parts, warp = static_cast<int>(threadIdx.x) / 32;
  for (int c0 = begin; c0 < end; c0 += beside) {
    const int c = c0 + static_cast<int>(threadIdx.x) / parts, there = c < end ? c : begin;
    const auto known = know(there);
    const int left = there * tiles.inner / width, right = ((there + 1) * tiles.inner - 1) / width;
    const int strips = right - left + 1, count = c < end ? strips * tiles.groups : 0;
    F sum[S] = {};
    for (int i0 = part; i0 < count; i0 += U * parts) {
      F values[U][S] = {};
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int i = i0 + u * parts;
        if (i >= count) continue;
        const int group = strips == 1 ? i : i / strips, strip = left + (i - group * strips);
        const F* const from = partial + (static_cast<long long>(group) * tiles.strips + strip) * S * tiles.slots +
                              (there - strip * width / tiles.inner);
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

// Behind the sums: each block makes of them what the channels of its tile need; or, where that were too much, of a few
// channels what all need.
template <int S, int W, class F, class Know, class Use>
__device__ __forceinline__ void finish_channels(const ChannelTiles& tiles, const F* partial, Know&& know, Use&& use) {
  wait_for_grid();
  int begin, end;
  if (tiles.each_for_itself) {
    begin = Tile<W>(tiles, blockIdx.x).begin / tiles.inner;
    end = begin + tiles.slots;
  } else {
    const int each = (tiles.channels + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    begin = static_cast<int>(blockIdx.x) * each;
    end = begin + each;
  }
  for_channels<S, W>(tiles, partial, begin, end < tiles.channels ? end : tiles.channels, know, use);
  if (!tiles.each_for_itself) wait_for_grid();
}

// x's elements in the turns of a thread, one after the other.
template <class Spec>
struct Elements {
  using Input = typename Spec::Input;
  const Input* at;
  long long time_stride, to_next_turn;
  int steps, t = 0;

  template <class Args>
  __device__ __forceinline__ Elements(const Args& a, const Tile<Spec::width>& tile)
      : at(static_cast<const Input*>(a.x[0].data) + tile.neuron),
        time_stride(a.x[0].time_stride),
        to_next_turn(tile.apart - (a.steps - 1) * a.x[0].time_stride),
        steps(static_cast<int>(a.steps)) {}

  __device__ __forceinline__ const Input* next() {
    const Input* const now = at;
    const bool is_last = ++t == steps;
    at += is_last ? to_next_turn : time_stride;
    t = is_last ? 0 : t;
    return now;
  }
};

// Of neurons beside each other.
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

template <class F>
__device__ __forceinline__ F middle(F a, F b, F c) {
  return maximum(minimum(a, b), minimum(maximum(a, b), c));
}

// A number near a channel's mean: the middle one of three that lie far apart, so that an outlier is not taken for it.
template <class Spec>
__device__ __forceinline__ typename Spec::Compute near_mean(const NormaliseAndRunArgs<Spec>& a, int channel) {
  using F = typename Spec::Compute;
  const auto* const x =
      static_cast<const typename Spec::Input*>(a.run.x[0].data) + static_cast<long long>(channel) * a.norm.tiles.inner;
  const long long* const at = a.norm.samples;
  return middle(convert<F>(x[at[0]]), convert<F>(x[at[1]]), convert<F>(x[at[2]]));
}

// The sums of x - K and of its square, K near the mean: of x and its square they would cancel.
template <class Spec>
__device__ __forceinline__ void add_up(const NormaliseAndRunArgs<Spec>& a, const Tile<Spec::width>& tile,
                                       typename Spec::Compute (&sums)[2][Spec::width]) {
  using F = typename Spec::Compute;
  using Neurons = Lanes<Spec::width, true>;
  constexpr int W = Spec::width, U = 32 / static_cast<int>(W * sizeof(typename Spec::Input));  // on their way, twice
  using Values = Pack<typename Spec::Input, W, true>;
  Elements<Spec> x(a.run, tile);
  long long left = tile.turns(a.run.neurons) * a.run.steps;
  Values now[U], next[U];
  const auto load = [&](Values(&to)[U]) {
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (u < left) to[u] = Neurons::load(x.next());
  };
  load(now);
  F near[W];
  ChannelOfNeuron channel(a.norm.tiles, tile.column);
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

template <class Spec>
__device__ __forceinline__ void normalise_and_run(const NormaliseAndRunArgs<Spec>& a) {
  using F = typename Spec::Compute;
  constexpr int W = Spec::width;
  const NormaliseArguments& norm = a.norm;
  F* const partial = static_cast<F*>(norm.partial);
  for_tiles<W>(norm.tiles, [&](const Tile<W>& tile, int i) {
    F sums[2][W] = {};
    if (tile.is_there) add_up(a, tile, sums);
    store_sums(norm.tiles, tile, sums, partial + i * 2ll * norm.tiles.slots);
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
  for_tiles_backwards<W>(norm.tiles, [&](const Tile<W>& tile) {
    if (tile.is_there) Multistep<Spec>::forward(a.run, tile.last(a.run.neurons), -tile.apart);
  });
}

template <class Spec, class Use>
__device__ __forceinline__ void backward_in_turns(const BackwardArgs<typename Spec::Cell>& a,
                                                  Lanes<Spec::width, true> first, long long apart, Use&& use) {
  if constexpr (Spec::one_segment)
    Multistep<Spec>::backward_one_segment(a, first, apart, use);
  else
    Multistep<Spec>::backward(a, first, apart, use);
}

// Of parameters that gradients are wanted of, which become sums of channels; scale and shift are the last.
template <class Spec>
__device__ constexpr int wanted_params() {
  int count = 0;
  for (int j = 0; j < Spec::Cell::n_params; ++j) count += Spec::wants_grad_param(j);
  return count;
}

// The loop runs twice: for the sums, which are the gradients by scale and shift and by what parameters the neuron has
// besides; and for the gradient of x.
template <class Sums, class Gradient>
__device__ __forceinline__ void normalise_and_run_grad(const NormaliseAndRunGradArgs<Sums, Gradient>& a) {
  using F = typename Sums::Compute;
  constexpr int W = Sums::width, P = Sums::Cell::n_params, S = wanted_params<Sums>();
  const NormaliseGradArguments& norm = a.norm;
  F* const partial = static_cast<F*>(norm.partial);
  for_tiles<W>(norm.tiles, [&](const Tile<W>& tile, int i) {
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
    if (tile.is_there) backward_in_turns<Sums>(a.sums, tile.first(), tile.apart, take);
    store_sums(norm.tiles, tile, sums, partial + static_cast<long long>(i) * S * norm.tiles.slots);
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
  for_tiles_backwards<W>(norm.tiles, [&](const Tile<W>& tile) {
    const auto drop = [](const typename Multistep<Gradient>::Gradients&) {};
    if (tile.is_there) backward_in_turns<Gradient>(a.gradient, tile.last(a.gradient.neurons), -tile.apart, drop);
  });
}

}  // namespace layers
}  // namespace spikeforge
