// batch_norm.cuh for sequences short enough that the rows of whole tiles are in flight in shared memory. Each block
// first sums its tiles' part of two sums per channel and publishes it; from all parts it computes the channel constants
// of the loop, and runs the loop. It processes the same tiles in reverse order: those that the sums read last are still
// in shared memory, or in the cache. No sum depends on the order in which blocks run.
//
// A Spec is the loop's (multistep.cuh), with neighbours, in_turns and one segment; its last parameters are
// graph::Layer's. A Block, printed by csrc/kernels/layer/batch_norm.cpp, has
//   threads   in a block: at most as many channels of its own
//   slots     tiles in the ring of a block
//   ahead     tiles in flight while one is computed
//   steps     of a sequence in the ring, at most; a power of two
//   is_exact  true if sequences have exactly as many steps
//   team      neighbouring threads that copy their rows together
//   keeps     backward: true if the first pass stores the known part of x's gradient, which the second pass completes
//
// Short names: F type of the arithmetic; W neurons per thread; I, O inputs and outputs of the cell; P its parameters; S
// sums per channel; C threads of a block, at most as many channels.
#pragma once

#include "csrc/neuron/functions.h"
#include "cuda/grid_barrier.cuh"
#include "cuda/layer/batch_norm.cuh"
#include "cuda/layer/ring_of_tiles.cuh"

namespace spikeforge {
namespace layers {
namespace ring {

template <class Spec> using NormaliseAndRunArgs = layers::NormaliseAndRunArgs<Spec, RingTiles>;
template <class Sums, class Gradient>
using NormaliseAndRunGradArgs = layers::NormaliseAndRunGradArgs<Sums, Gradient, RingTiles>;

// The gradient of x is also in the arguments of `sums`.
template <class Sums> struct KeptGradArgs {
  BackwardArgs<typename Sums::Cell> sums;
  NormaliseGradArguments<RingTiles> norm;
};

// The last `count` parameters of a cell, for the channels of a thread's neurons, from a block's table of its channels.
template <class Spec, class Block, int count> class ParamsOfTable {
 public:
  using F = typename Spec::Compute;
  static constexpr int first = Spec::Cell::n_params - count;

  __device__ __forceinline__ ParamsOfTable(const F* table, const Place<Spec>& place, const Unit<Spec>& unit)
      : table_(table), channels_(place, unit) {}

  static __device__ constexpr bool has(int j) { return j >= first; }
  __device__ __forceinline__ F value(int j, int k) const {
    return table_[(j - first) * Block::threads + channels_.of[k]];
  }

 private:
  const F* const table_;
  const ChannelsOfLanes<Spec::width> channels_;
};

// A value of a channel, in the type of the arithmetic; `otherwise` if it was not given.
template <class F> __device__ __forceinline__ F number_of(const void* numbers, int channel, F otherwise) {
  return numbers != nullptr ? static_cast<const F*>(numbers)[channel] : otherwise;
}

// ---- forward ----

// Three distant values of a channel. Their median is near the mean, and is not an outlier.
template <class Spec> struct Samples {
  using F = typename Spec::Compute;
  typename Spec::Input of[3];

  Samples() = default;
  __device__ __forceinline__ Samples(const NormaliseAndRunArgs<Spec>& a, int channel) {
    const auto* const x = static_cast<const typename Spec::Input*>(a.run.x[0].data) +
                          static_cast<long long>(channel) * a.norm.tiles.inner;
#pragma unroll
    for (int i = 0; i < 3; ++i) of[i] = x[a.norm.samples[i]];
  }

  __device__ __forceinline__ F near_mean() const {
    return middle(convert<F>(of[0]), convert<F>(of[1]), convert<F>(of[2]));
  }
};

// Adds the difference between x and the value near its mean, and the square of the difference. Sums of x and its square
// would cancel.
template <class Values, class F, int W>
__device__ __forceinline__ void add_up(const Values& values, const F (&near)[W], F (&sums)[2][W]) {
  F x[W];
  values.unpack(x);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const F d = x[k] - near[k];
    sums[0][k] += d;
    sums[1][k] = fma(d, d, sums[1][k]);
  }
}

// Both passes over the block's tiles, with x's rows in the ring: `add_up` of each unit of a strip, and `run`. Other
// inputs are loaded into registers, one tile ahead.
template <class Spec, class Block> class RingForward {
 public:
  using Loop = Multistep<Spec>;
  using F = typename Spec::Compute;
  using Params = ParamsOfTable<Spec, Block, 3>;
  static constexpr int I = Loop::I;

  __device__ __forceinline__ RingForward(const NormaliseAndRunArgs<Spec>& a, const Place<Spec>& place)
      : a_(a), each_(place.tiles.each), steps_(static_cast<int>(a.run.steps)), ring_(place) {
    ring_.fill(Copy{a_, steps_});
  }

  __device__ __forceinline__ void add_up(const Unit<Spec>& unit, const F (&near)[Spec::width],
                                         F (&sums)[2][Spec::width]) {
#pragma unroll 1
    for (int turn = 0; turn < each_; ++turn) {
      ring_.wait();
      if (turn < unit.turns)
#pragma unroll
        for (int t = 0; t < Block::steps; ++t)
          if (Block::is_exact || t < steps_) ring::add_up(ring_.row(0, t), near, sums);
      ring_.go_down(Copy{a_, steps_});
    }
  }
  __device__ __forceinline__ void turn() { ring_.turn(); }

  __device__ __forceinline__ void run(const Unit<Spec>& unit, const Params& params) {
    const typename Loop::Cells cells(a_.run, unit.neurons(0), params);
    Others others;
    others.load(a_, unit, unit.turns - 1);
#pragma unroll 1
    for (int turn = each_ - 1; turn >= 0; --turn) {
      ring_.wait();
      if (turn < unit.turns) {
        const Others now = others;
        others.load(a_, unit, turn - 1);
        Loop::template forward_rows<Block::steps, Block::is_exact>(a_.run, cells, unit.neurons(turn),
                                                                   [&](typename Loop::InputPack(&row)[I], int t) {
                                                                     row[0] = ring_.row(0, t);
                                                                     now.get(row, t);
                                                                   });
      }
      ring_.go_up(Copy{a_, steps_});
    }
  }

 private:
  struct Copy {
    const NormaliseAndRunArgs<Spec>& a;
    const int steps;

    template <class AnyRing>
    __device__ __forceinline__ void operator()(const AnyRing& ring, long long neuron, CachePolicy policy) const {
      ring.copy(0, a.run.x[0], steps, neuron, policy);
    }
  };

  struct Others {
    typename Loop::InputPack rows[Block::steps][I];

    __device__ __forceinline__ void load(const NormaliseAndRunArgs<Spec>& a, const Unit<Spec>& unit, int turn) {
      if (I == 1 || turn < 0) return;
#pragma unroll
      for (int c = I - 1; c > 0; --c) {
        auto from = Loop::template rows_of<typename Spec::Input>(a.run.x[c], 0, unit.neurons(turn));
#pragma unroll
        for (int t = 0; t < Block::steps; ++t) {
          const auto* const row = from.next();
          if (Block::is_exact || t < static_cast<int>(a.run.steps)) rows[t][c] = Loop::Neurons::load(row);
        }
      }
    }
    __device__ __forceinline__ void get(typename Loop::InputPack (&row)[I], int t) const {
#pragma unroll
      for (int c = I - 1; c > 0; --c) row[c] = rows[t][c];
    }
  };

  const NormaliseAndRunArgs<Spec>& a_;
  const int each_, steps_;
  Ring<Spec, Block, 1> ring_;
};

// The running statistics that a block updates. They are read when the kernel begins: this hides their latency, and
// after the grid barrier the count of batches may change.
template <class F> class RunningStatistics {
 public:
  // Loads the values of the thread's channel.
  template <class Channel>
  __device__ __forceinline__ RunningStatistics(const NormaliseArguments<RingTiles>& norm, const Channel& channel)
      : batches_(norm.batches != nullptr ? *norm.batches + 1 : 1) {
    if (norm.running_mean == nullptr || !channel.is_own) return;
    mean_ = static_cast<const F*>(norm.running_mean)[channel.index];
    var_ = static_cast<const F*>(norm.running_var)[channel.index];
  }

  // Moves the running statistics towards those of the input.
  __device__ __forceinline__ void move(const NormaliseArguments<RingTiles>& norm, int c, F mean, F var) const {
    if (norm.running_mean == nullptr) return;
    const F factor = norm.momentum < 0 ? F(1) / static_cast<F>(batches_) : static_cast<F>(norm.momentum);
    const F share = static_cast<F>(norm.share);
    static_cast<F*>(norm.running_mean)[c] = lerp(mean_, mean, factor);
    static_cast<F*>(norm.running_var)[c] = lerp(var_, var * (F(1) / (F(1) - share)), factor);
    if (c == 0) *norm.batches = batches_;
  }

 private:
  const long long batches_;
  F mean_ = 0, var_ = 0;
};

template <class Spec, class Block>
__device__ __forceinline__ void normalise_and_run(const NormaliseAndRunArgs<Spec>& a) {
  using F = typename Spec::Compute;
  constexpr int W = Spec::width, C = Block::threads;
  // Values of the block's channels: values near their means, weight and bias; later the constants of the loop.
  __shared__ F table[3 * C];
  const NormaliseArguments<RingTiles>& norm = a.norm;
  GridBarrier barrier;
  const Place<Spec> place(norm.tiles);
  const SumsOfChannels<2> all(norm.tiles, norm.partial);

  const int own = static_cast<int>(threadIdx.x);
  const auto channel = place.channel(own);
  all.clear(place, channel);
  const RunningStatistics<F> running(norm, channel);
  barrier.arrive();
  // Loaded before the tiles: after them they would arrive last.
  Samples<Spec> samples;
  F weight, bias;
  if (channel.index >= 0) {
    samples = Samples<Spec>(a, channel.index);
    weight = number_of(norm.weight, channel.index, F(1));
    bias = number_of(norm.bias, channel.index, F(0));
  }
  RingForward<Spec, Block> passes(a, place);
  if (channel.index >= 0) {
    table[own] = samples.near_mean();
    table[C + own] = weight;
    table[2 * C + own] = bias;
  }
  __syncthreads();

  for_units<Spec>(place, [&](const Unit<Spec>& unit) {
    const ChannelsOfLanes<W> channels(place, unit);
    F near[W], sums[2][W] = {};
#pragma unroll
    for (int k = 0; k < W; ++k) near[k] = table[channels.of[k]];
    passes.add_up(unit, near, sums);
    if (unit.strip < norm.tiles.strips) publish_sums<Block>(place, unit.strip, sums, all);
  });
  passes.turn();
  barrier.wait();  // words published by an earlier launch are cleared
  all.template publish_totals<Block>(place);
  F mean, var, rstd, scale;
  if (channel.index >= 0) {
    F sum[2] = {};
    all.of_channel(channel.index, sum);
    const F share = static_cast<F>(norm.share);
    const F m = sum[0] * share, v = sum[1] * share - m * m;
    mean = table[own] + m;
    var = v < F(0) ? F(0) : v;
    rstd = F(1) / sqrt(var + static_cast<F>(norm.eps));
    scale = rstd * table[C + own];
    table[own] = mean;
    table[C + own] = scale;
  }
  __syncthreads();
  if (channel.is_own) {
    const auto store = [&](void* to, F value) { static_cast<F*>(to)[channel.index] = value; };
    store(norm.mean, mean);
    store(norm.var, var);
    store(norm.center, mean);
    store(norm.rstd, rstd);
    store(norm.scale, scale);
    store(norm.shift, table[2 * C + own]);
    running.move(norm, channel.index, mean, var);
  }
  for_units_backwards<Spec>(place, [&](const Unit<Spec>& unit) { passes.run(unit, {table, place, unit}); });
}

// ---- backward ----

// Both passes over the block's tiles, with the rows of inputs and of upstream gradients in the ring; where x's gradient
// is kept, it takes the place of the first of these.
template <class Sums, class Block> class RingBackward {
 public:
  using Args = BackwardArgs<typename Sums::Cell>;
  using Input = typename Sums::Input;
  static constexpr int I = Multistep<Sums>::I, O = Multistep<Sums>::O;

  __device__ __forceinline__ RingBackward(const Args& a, const Place<Sums>& place)
      : a_(a),
        each_(place.tiles.each),
        first_staying_(place.tiles.units * place.tiles.each - Block::slots),
        steps_(static_cast<int>(a.steps)),
        ring_(place) {
    ring_.fill(Copy{a_, steps_});
  }

  template <class Take>
  __device__ __forceinline__ void add_up(const Unit<Sums>& unit, const ParamsOfTable<Sums, Block, 3>& params,
                                         Take&& take) {
    using Loop = Multistep<Sums>;
    const typename Loop::Cells cells(a_, unit.neurons(0), params);
    typename Loop::Gradients grad;
    typename Sums::Compute own[Sums::width][room(Loop::S)] = {};
#pragma unroll 1
    for (int turn = 0; turn < each_; ++turn) {
      ring_.wait();
      const bool stays = unit.number * each_ + turn >= first_staying_;
      if (turn < unit.turns) run_back<Sums>(a_, cells, unit.neurons(turn), stays, grad, own);
      ring_.go_down(Copy{a_, steps_});
    }
    if (unit.turns == 0) return;
    Loop::finish_grad_params(cells, own, grad);
    take(grad);
  }
  __device__ __forceinline__ void turn() { ring_.turn(); }

  // x's gradient, by the cell with the statistics as parameters.
  template <class Gradient>
  __device__ __forceinline__ void run(const BackwardArgs<typename Gradient::Cell>& a, const Unit<Gradient>& unit,
                                      const ParamsOfTable<Gradient, Block, 5>& params) {
    using Loop = Multistep<Gradient>;
    const typename Loop::Cells cells(a, unit.neurons(0), params);
    typename Loop::Gradients grad;
    typename Gradient::Compute own[Gradient::width][room(Loop::S)] = {};
#pragma unroll 1
    for (int turn = each_ - 1; turn >= 0; --turn) {
      ring_.wait();
      if (turn < unit.turns) run_back<Gradient>(a, cells, unit.neurons(turn), true, grad, own);
      ring_.go_up(Copy{a_, steps_});
    }
  }

  // Adds the contribution of the statistics to the stored part of x's gradient (graph::Layer).
  __device__ __forceinline__ void complete(const Unit<Sums>& unit, const typename Sums::Compute* center,
                                           const typename Sums::Compute* offset, const typename Sums::Compute* slope) {
    using Loop = Multistep<Sums>;
    constexpr int W = Sums::width;
    typename Sums::Compute mean[W], constant[W], factor[W];
    const ChannelsOfLanes<W> channels(place_of_ring(), unit);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      mean[k] = center[channels.of[k]];
      constant[k] = offset[channels.of[k]];
      factor[k] = slope[channels.of[k]];
    }
#pragma unroll 1
    for (int turn = each_ - 1; turn >= 0; --turn) {
      ring_.wait();
      if (turn < unit.turns) {
        auto rows = Loop::template rows_of<Input>(a_.grad_x[0], 0, a_.neurons, unit.neurons(turn));
#pragma unroll
        for (int t = 0; t < Block::steps; ++t) {
          Input* const row = rows.next();
          if (!Block::is_exact && t >= steps_) continue;
          typename Sums::Compute x[W], grad[W];
          ring_.row(0, t).unpack(x);
          ring_.row(I, t).unpack(grad);
#pragma unroll
          for (int k = 0; k < W; ++k) grad[k] += fma(factor[k], x[k] - mean[k], constant[k]);
          typename Loop::InputPack values;
          values.pack(grad);
          Loop::Neurons::store(row, values);
        }
      }
      ring_.go_up(CopyKept{a_, steps_});
    }
  }

 private:
  static __device__ constexpr bool in_ring(int c) { return Sums::has_grad_y(c) && !Sums::one_grad_y(c); }
  // The kind of an output among the rows in the ring, which follow the inputs.
  static __device__ constexpr int kind_of(int output) {
    int kind = I;
    for (int c = 0; c < output; ++c) kind += in_ring(c);
    return kind;
  }
  using TileRing = Ring<Sums, Block, kind_of(O)>;
  static_assert(!Block::keeps || in_ring(0), "a place for x's gradient");

  __device__ __forceinline__ const Place<Sums>& place_of_ring() const { return ring_.place(); }

  struct Copy {
    const Args& a;
    const int steps;

    __device__ __forceinline__ void operator()(const TileRing& ring, long long neuron, CachePolicy policy) const {
#pragma unroll
      for (int c = 0; c < I; ++c) ring.copy(c, a.x[c], steps, neuron, policy);
#pragma unroll
      for (int c = 0; c < O; ++c)
        if (in_ring(c)) ring.copy(kind_of(c), a.grad_y[c], steps, neuron, policy);
    }
  };
  struct CopyKept {
    const Args& a;
    const int steps;

    __device__ __forceinline__ void operator()(const TileRing& ring, long long neuron, CachePolicy policy) const {
      ring.copy(0, a.x[0], steps, neuron, policy);
      ring.copy(I, {a.grad_x[0], a.neurons}, steps, neuron, policy);
    }
  };

  // Multistep::SegmentRows for rows in registers.
  template <class Spec> struct RowsOfRing {
    using Pack = typename Multistep<Spec>::InputPack;
    static constexpr bool is_shared = true;
    const BackwardArgs<typename Spec::Cell>* a;
    const TileRing* ring;
    int t0, length;
    typename Multistep<Spec>::template Starts<Multistep<Spec>::C> starts;  // none: sequences are whole
    mutable Pack kept[Block::keeps ? Block::steps : 1];                    // x's gradient

    __device__ __forceinline__ Pack input(int u, int c) const { return ring->row(c, u); }
    __device__ __forceinline__ Pack upstream(int u, int c) const {
      if (c < O && in_ring(c)) return ring->row(kind_of(c), u);
      Pack pack;
      const spikeforge::Rows& rows = a->grad_y[c];
      if (Spec::one_grad_y(c) && u < length)
        pack.fill(static_cast<const Input*>(rows.data)[u * rows.time_stride]);
      else
        pack.fill(convert<Input>(0.f));
      return pack;
    }
    __device__ __forceinline__ void store_grad_x(Input* row, int u, int c, const Pack& values) const {
      if (Block::keeps && c == 0)
        kept[u] = values;
      else
        Multistep<Spec>::Neurons::store(row, values);
    }
  };

  template <class Spec, class Cells, class Gradients, class F, int W, int S>
  __device__ __forceinline__ void run_back(const BackwardArgs<typename Spec::Cell>& a, const Cells& cells,
                                           typename Multistep<Spec>::Neurons n, bool stays, Gradients& grad,
                                           F (&own)[W][S]) {
    using Loop = Multistep<Spec>;
    static_assert(Loop::C == Block::steps, "a sequence is a segment");
    typename Loop::template SegmentOf<RowsOfRing<Spec>> segment;
    static_cast<RowsOfRing<Spec>&>(segment) = {&a, &ring_, 0, steps_, {}, {}};
    Loop::backward_rows(a, cells, n, segment, grad, own);
    if constexpr (Block::keeps) keep(n, segment, stays);
  }

  // Stored after the loop: otherwise the compiler would reload x after each store.
  template <class Neurons>
  __device__ __forceinline__ void keep(Neurons n, const RowsOfRing<Sums>& segment, bool stays) const {
    auto rows = Multistep<Sums>::template rows_of<Input>(a_.grad_x[0], 0, a_.neurons, n);
#pragma unroll
    for (int t = 0; t < Block::steps; ++t) {
      Input* const row = rows.next();
      if (!Block::is_exact && t >= steps_) continue;
      ring_.row(I, t) = segment.kept[t];
      if (!stays) Neurons::store(row, segment.kept[t]);
    }
  }

  const Args& a_;
  const int each_, first_staying_, steps_;
  TileRing ring_;
};

// Runs the loop for the sums, which are the gradients by scale, shift and the neuron's other parameters. Then
// finish(passes, place, table) computes the gradient of x; the table has center, scale, shift, offset and slope of the
// block's channels.
template <class Sums, class Block, class Finish>
__device__ __forceinline__ void add_up_and(const BackwardArgs<typename Sums::Cell>& a,
                                           const NormaliseGradArguments<RingTiles>& norm, Finish&& finish) {
  using F = typename Sums::Compute;
  constexpr int W = Sums::width, P = Sums::Cell::n_params, S = wanted_params<Sums>(), C = Block::threads;
  // Values of the block's channels: center, scale and shift; rstd, later offset and slope.
  __shared__ F table[5 * C];
  GridBarrier barrier;
  const Place<Sums> place(norm.tiles);
  const SumsOfChannels<S> all(norm.tiles, norm.partial);

  const int own = static_cast<int>(threadIdx.x);
  const auto channel = place.channel(own);
  all.clear(place, channel);
  barrier.arrive();
  F numbers[4];
  if (channel.index >= 0) {
#pragma unroll
    for (int i = 0; i < 3; ++i) numbers[i] = number_of(a.params[P - 3 + i].data, channel.index, F(0));
    numbers[3] = number_of(norm.rstd, channel.index, F(0));
  }
  RingBackward<Sums, Block> passes(a, place);
  if (channel.index >= 0)
#pragma unroll
    for (int i = 0; i < 4; ++i) table[i * C + own] = numbers[i];
  __syncthreads();

  for_units<Sums>(place, [&](const Unit<Sums>& unit) {
    F sums[S][W] = {};
    passes.add_up(unit, {table, place, unit}, [&](const typename Multistep<Sums>::Gradients& grad) {
      int s = 0;
#pragma unroll
      for (int j = 0; j < P; ++j) {
        if (!Sums::wants_grad_param(j)) continue;
#pragma unroll
        for (int k = 0; k < W; ++k) sums[s][k] = grad.param[k][j];
        ++s;
      }
    });
    if (unit.strip < norm.tiles.strips) publish_sums<Block>(place, unit.strip, sums, all);
  });
  passes.turn();
  barrier.wait();
  all.template publish_totals<Block>(place);
  F sum[S] = {}, of_weight, offset, slope;
  if (channel.index >= 0) {
    all.of_channel(channel.index, sum);
    const F scale = table[C + own], rstd = table[3 * C + own];
    of_weight = sum[S - 2] * rstd;
    const F share = static_cast<F>(norm.share);
    offset = (number_of(norm.grad_mean, channel.index, F(0)) - sum[S - 1] * scale) * share;
    slope = (F(2) * number_of(norm.grad_var, channel.index, F(0)) - of_weight * rstd * scale) * share;
    table[3 * C + own] = offset;
    table[4 * C + own] = slope;
  }
  __syncthreads();
  if (channel.is_own) {
    const auto store = [&](void* to, F value) { static_cast<F*>(to)[channel.index] = value; };
    store(norm.grad_weight, of_weight);
    store(norm.grad_bias, sum[S - 1]);
    store(norm.offset, offset);
    store(norm.slope, slope);
    int s = 0;
#pragma unroll
    for (int j = 0; j < P - 2; ++j)
      if (Sums::wants_grad_param(j)) store(a.grad_params[j], sum[s++]);
  }
  finish(passes, place, static_cast<const F*>(table));
}

// Runs the loop again, for the gradient of x.
template <class Sums, class Gradient, class Block>
__device__ __forceinline__ void normalise_and_run_grad(const NormaliseAndRunGradArgs<Sums, Gradient>& a) {
  add_up_and<Sums, Block>(
      a.sums, a.norm, [&](RingBackward<Sums, Block>& passes, const Place<Sums>&, const typename Sums::Compute* table) {
        const Place<Gradient> place(a.norm.tiles);
        for_units_backwards<Gradient>(place, [&](const Unit<Gradient>& unit) {
          passes.run(a.gradient, unit, {table, place, unit});
        });
      });
}

template <class Sums, class Block>
__device__ __forceinline__ void normalise_and_run_grad_kept(const KeptGradArgs<Sums>& a) {
  add_up_and<Sums, Block>(
      a.sums, a.norm,
      [&](RingBackward<Sums, Block>& passes, const Place<Sums>& place, const typename Sums::Compute* table) {
        for_units_backwards<Sums>(place, [&](const Unit<Sums>& unit) {
          passes.complete(unit, table, table + 3 * Block::threads, table + 4 * Block::threads);
        });
      });
}

}  // namespace ring
}  // namespace layers
}  // namespace spikeforge
