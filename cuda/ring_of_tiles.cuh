// How the blocks of one launch share neurons that have channels (RingTiles): where a thread stands, the ring of tiles
// on their way, and sums over channels that blocks share.
#pragma once

#include <spikeforge/kernels/layer/arguments.h>
#include <spikeforge/cuda/divisor.cuh>
#include <spikeforge/cuda/grid_barrier.cuh>
#include <spikeforge/cuda/multistep.cuh>

namespace spikeforge {
namespace layers {
namespace ring {

// What a block takes of a strip, and the thread of it: so many turns, each as far behind the one before.
template <class Spec>
struct Unit {
  using Turns = typename Multistep<Spec>::Turns;
  using Neurons = typename Multistep<Spec>::Neurons;
  int number, strip;
  int column;  // the thread's first neuron, in the period
  int turns;   // 0: none of its neurons is there
  long long first, apart;

  __device__ __forceinline__ long long neuron(int turn) const { return first + turn * apart; }
  __device__ __forceinline__ Neurons neurons(int turn) const {
    const long long n = neuron(turn);
    return {n, n};
  }
  __device__ __forceinline__ Turns down() const { return {neurons(0), apart, 0, neuron(turns)}; }
  __device__ __forceinline__ Turns up() const { return {neurons(turns - 1), -apart, 0, neuron(turns)}; }
};

// Where a block and a thread of it stand: what takes divisions is found once.
template <class Spec>
struct Place {
  static constexpr int W = Spec::width;
  const RingTiles& tiles;
  int first_strip, member;  // of the block
  int column, turns;        // of the thread, in any strip that reaches so far
  long long row, apart;

  __device__ __forceinline__ explicit Place(const RingTiles& tiles) : tiles(tiles) {
    const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const int below = quotient(thread, tiles.by_across), rows = tiles.members * tiles.down;
    first_strip = quotient(block, tiles.by_members);
    member = block - first_strip * tiles.members;
    column = (thread - below * tiles.across) * W;
    const int at = member * tiles.down + below;
    turns = below < tiles.down && at < tiles.rows ? quotient(tiles.rows - 1 - at, tiles.by_rows) + 1 : 0;
    row = static_cast<long long>(at) * tiles.period;
    apart = static_cast<long long>(rows) * tiles.period;
  }

  __device__ __forceinline__ int width() const { return tiles.across * W; }  // of a strip
  __device__ __forceinline__ int first_channel(int strip) const { return quotient(strip * width(), tiles.by_inner); }

  __device__ __forceinline__ Unit<Spec> unit(int number) const {
    const int strip = first_strip + number * tiles.strips_apart, at = strip * width() + column;
    const bool is_there =
        static_cast<unsigned>(number) < static_cast<unsigned>(tiles.units) && strip < tiles.strips && at < tiles.period;
    return {number, strip, at, is_there ? turns : 0, is_there ? row + at : 0, apart};
  }

  // The block's channels are numbered: `slots` for each of its units. -1: there is none.
  __device__ __forceinline__ int channels() const { return tiles.units * tiles.slots; }
  __device__ __forceinline__ int channel(int number) const {
    const int unit = quotient(number, tiles.by_slots), strip = first_strip + unit * tiles.strips_apart;
    const int c = first_channel(strip) + number - unit * tiles.slots;
    const bool is_there =
        number < channels() && strip < tiles.strips && c < tiles.channels && c * tiles.inner < (strip + 1) * width();
    return is_there ? c : -1;
  }

  // Of all that has a part of a channel.
  __device__ __forceinline__ bool has_first_part_of(int c) const {
    const int strip = quotient(c * tiles.inner, tiles.by_width);
    return member == 0 && strip - quotient(strip, tiles.by_strips_apart) * tiles.strips_apart == first_strip;
  }
};

// Those numbers, of the channels of a thread's neurons.
template <int W>
struct ChannelsOfLanes {
  int of[W];

  template <class Spec>
  __device__ __forceinline__ ChannelsOfLanes(const Place<Spec>& place, const Unit<Spec>& unit) {
    const int inner = place.tiles.inner, column = unit.turns > 0 ? unit.column : unit.strip * place.width();
    int channel = quotient(column, place.tiles.by_inner), within = column - channel * inner;
    channel += unit.number * place.tiles.slots - place.first_channel(unit.strip);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      of[k] = channel;
      const bool is_last = ++within == inner;
      channel += is_last;
      within = is_last ? 0 : within;
    }
  }
};

// use(unit) for what the block takes of each of its strips, and backwards.
template <class Spec, class Use>
__device__ __forceinline__ void for_units(const Place<Spec>& place, Use&& use) {
#pragma unroll 1
  for (int u = 0; u < place.tiles.units; ++u) use(place.unit(u));
}
template <class Spec, class Use>
__device__ __forceinline__ void for_units_backwards(const Place<Spec>& place, Use&& use) {
#pragma unroll 1
  for (int u = place.tiles.units - 1; u >= 0; --u) use(place.unit(u));
}

// ---- sums of channels ----

// What a block adds up of a channel.
template <class F, int S>
struct alignas(S % 2 == 0 ? 2 * sizeof(F) : sizeof(F)) Sums {
  F of[S];

  // From where other blocks wrote them.
  __device__ __forceinline__ void load(const Sums* from) {
    if constexpr (S % 2 == 0 && sizeof(F) == 4) {
#pragma unroll
      for (int s = 0; s < S; s += 2) {
        const float2 pair = __ldcg(reinterpret_cast<const float2*>(from->of + s));
        of[s] = pair.x;
        of[s + 1] = pair.y;
      }
    } else {
#pragma unroll
      for (int s = 0; s < S; ++s) of[s] = __ldcg(from->of + s);
    }
  }
};

// Where [strips, slots, members] has those of a channel over what the first member took of the strip.
template <class Spec>
__device__ __forceinline__ long long place_of_sums(const Place<Spec>& place, int strip, int channel) {
  const int slot = channel - place.first_channel(strip);
  return (static_cast<long long>(strip) * place.tiles.slots + slot) * place.tiles.members;
}

// The sum over the threads that share it, which are neighbours, for the first of them.
template <class F>
__device__ __forceinline__ F sum_of_sharers(F sum, int sharers) {
#pragma unroll 1
  for (int distance = sharers / 2; distance > 0; distance /= 2) sum += __shfl_down_sync(~0u, sum, distance, sharers);
  return sum;
}

// From each thread's sums of its lanes to those of the strip's channels, two of them at once.
template <class Block, class Spec, int S, class F, int W>
__device__ __forceinline__ void store_sums(const Place<Spec>& place, int strip, const F (&sums)[S][W],
                                           Sums<F, S>* partial) {
  constexpr int pitch = Block::threads + 32 / W;  // neighbours lie in different banks
  constexpr int at_once = S < 2 ? S : 2;
  __shared__ F of_lanes[at_once][W * pitch];
  const RingTiles& tiles = place.tiles;
  const int thread = static_cast<int>(threadIdx.x), sharers = tiles.sharers;
  const int group = quotient(thread, tiles.by_sharers), part = thread - group * sharers,
            groups = quotient(Block::threads, tiles.by_sharers);
  const int width = place.width(), begin = strip * width, first = place.first_channel(strip);
  Sums<F, S>* const to = partial + place_of_sums(place, strip, first) + place.member;
#pragma unroll
  for (int s0 = 0; s0 < S; s0 += at_once) {
#pragma unroll
    for (int s = 0; s < at_once; ++s)
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (s0 + s < S) of_lanes[s][k * pitch + thread] = sums[s0 + s][k];
    __syncthreads();
#pragma unroll 1
    for (int slot0 = 0; slot0 < tiles.slots; slot0 += groups) {
      const int slot = slot0 + group;
      // The slot's neurons in each row of a tile.
      const int from = (first + slot) * tiles.inner - begin;
      const int left = from > 0 ? from : 0, right = from + tiles.inner < width ? from + tiles.inner : width;
      const bool is_there = slot < tiles.slots && left < right && first + slot < tiles.channels;
      F sum[at_once] = {};
      const auto add = [&](int j, int row) {
        const int at = j % W * pitch + row * tiles.across + j / W;
#pragma unroll
        for (int s = 0; s < at_once; ++s) sum[s] += of_lanes[s][at];
      };
      if (is_there && tiles.inner == 1) {
#pragma unroll 4
        for (int row = part; row < tiles.down; row += sharers) add(left, row);
      } else if (is_there) {
        int row = 0, j = left + part;
        while (true) {
          while (j >= right) {
            j -= right - left;
            ++row;
          }
          if (row >= tiles.down) break;
          add(j, row);
          j += sharers;
        }
      }
#pragma unroll
      for (int s = 0; s < at_once; ++s) sum[s] = sum_of_sharers(sum[s], sharers);
      if (is_there && part == 0)
#pragma unroll
        for (int s = 0; s < at_once; ++s)
          if (s0 + s < S) to[slot * tiles.members].of[s0 + s] = sum[s];
    }
    __syncthreads();
  }
}

// What a thread adds up of a channel: its share of all parts.
template <class F, int S>
class PartsOfChannel {
 public:
  int number, channel;  // -1: there is none

  template <class Spec>
  __device__ __forceinline__ PartsOfChannel(const Place<Spec>& place, const Sums<F, S>* partial, int number, int part)
      : number(number), channel(place.channel(number)), part_(part) {
    if (channel < 0) return;
    left_ = quotient(channel * place.tiles.inner, place.tiles.by_width);
    right_ = quotient((channel + 1) * place.tiles.inner - 1, place.tiles.by_width);
    from_ = partial + place_of_sums(place, left_, channel);
  }

  template <class Spec>
  __device__ __forceinline__ void add_up(const Place<Spec>& place, const Sums<F, S>* partial, F (&sum)[S]) const {
    constexpr int U = S <= 2 ? 20 : 4;  // on their way
    const int sharers = place.tiles.sharers, members = place.tiles.members;
    if (channel < 0) return;
    if (left_ == right_) {
#pragma unroll 1
      for (int m0 = part_; m0 < members; m0 += U * sharers) {
        Sums<F, S> values[U] = {};
#pragma unroll
        for (int u = 0; u < U; ++u)
          if (m0 + u * sharers < members) values[u].load(from_ + m0 + u * sharers);
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
          for (int s = 0; s < S; ++s) sum[s] += values[u].of[s];
      }
      return;
    }
#pragma unroll 1
    for (int j = part_; j < (right_ - left_ + 1) * members; j += sharers) {
      const int beyond = quotient(j, place.tiles.by_members);
      Sums<F, S> value;
      value.load(partial + place_of_sums(place, left_ + beyond, channel) + (j - beyond * members));
#pragma unroll
      for (int s = 0; s < S; ++s) sum[s] += value.of[s];
    }
  }

 private:
  int part_, left_ = 0, right_ = 0;
  const Sums<F, S>* from_ = nullptr;
};

// Behind the sums of all blocks: use(number, channel, sums, is_first) for each channel of the block, by one thread. Of
// blocks that have the same channel one is the first; they all give its sums the same bits.
template <class Block, class F, int S, class Spec, class Use>
__device__ __forceinline__ void finish_channels(const Place<Spec>& place, GridBarrier barrier,
                                                const Sums<F, S>* partial, Use&& use) {
  const RingTiles& tiles = place.tiles;
  const int thread = static_cast<int>(threadIdx.x), sharers = tiles.sharers;
  const int group = quotient(thread, tiles.by_sharers), part = thread - group * sharers,
            groups = quotient(Block::threads, tiles.by_sharers);
  PartsOfChannel<F, S> parts(place, partial, group, part);
  barrier.meet();
#pragma unroll 1
  for (int number0 = 0;;) {
    F sum[S] = {};
    parts.add_up(place, partial, sum);
#pragma unroll
    for (int s = 0; s < S; ++s) sum[s] = sum_of_sharers(sum[s], sharers);
    if (part == 0 && parts.channel >= 0) use(parts.number, parts.channel, sum, place.has_first_part_of(parts.channel));
    number0 += groups;
    if (number0 >= place.channels()) break;
    parts = PartsOfChannel<F, S>(place, partial, number0 + group, part);
  }
  __syncthreads();
}

// ---- the ring: the tiles on their way, in shared memory ----
//
// A thread copies what it will read itself, so that none waits for another. After the tiles' first pass the last of
// them are still there, and the second pass begins with these.

template <class Spec, class Block, int kinds>
class Ring {
 public:
  using Input = typename Spec::Input;
  using Pack = typename Multistep<Spec>::InputPack;

  __device__ __forceinline__ explicit Ring(const Place<Spec>& place) : place_(place) { stand_at(0, 0); }

  // copy(ring, neuron) copies the rows of a tile; the first tiles begin to come.
  template <class Copy>
  __device__ __forceinline__ void fill(Copy&& copy) {
    const int tiles = place_.tiles.units * place_.tiles.each;
#pragma unroll 1
    for (int i = 0; i < Block::slots; ++i)
      if (i < tiles)
        go_down(copy);
      else
        end_of_copies();
    slot_ = 0;
  }

  // Down the tiles, when the thread is done with one: another takes its place, if there is any; else it stays.
  template <class Copy>
  __device__ __forceinline__ void go_down(Copy&& copy) {
    next(copy);
    slot_ = slot_ == (Block::slots - 1) * size ? 0 : slot_ + size;
    neuron_ += place_.apart;
    if (++turn_ == place_.tiles.each) stand_at(number_ + 1, 0);
  }

  // Behind the last tile: the other way round.
  __device__ __forceinline__ void turn() {
    slot_ = slot_ == 0 ? (Block::slots - 1) * size : slot_ - size;
    const int each = place_.tiles.each, tile = place_.tiles.units * each - 1 - Block::slots;
    const int number = tile < 0 ? -1 : tile / each;
    stand_at(number, tile < 0 ? 0 : tile - number * each);
  }

  template <class Copy>
  __device__ __forceinline__ void go_up(Copy&& copy) {
    next(copy);
    slot_ = slot_ == 0 ? (Block::slots - 1) * size : slot_ - size;
    neuron_ -= place_.apart;
    if (--turn_ < 0) stand_at(number_ - 1, place_.tiles.each - 1);
  }

  __device__ __forceinline__ void wait() const { wait_for_copies<Block::slots - 1>(); }
  __device__ __forceinline__ const Place<Spec>& place() const { return place_; }

  __device__ __forceinline__ Pack& row(int kind, int t) const {
    return packs()[slot_ + (kind * Block::steps + t) * Block::threads + static_cast<int>(threadIdx.x)];
  }

  __device__ __forceinline__ void copy(int kind, const spikeforge::Rows& rows, int steps, long long neuron) const {
    const Input* from = static_cast<const Input*>(rows.data) + neuron;
#pragma unroll
    for (int t = 0; t < Block::steps; ++t) {
      if (Block::is_exact || t < steps) stream_to_shared<sizeof(Pack)>(&row(kind, t), from);
      from += rows.time_stride;
    }
  }

 private:
  static constexpr int size = kinds * Block::steps * Block::threads;  // packs of a slot

  static __device__ __forceinline__ Pack* packs() {
    extern __shared__ __align__(16) unsigned char ring_of_tiles[];
    return reinterpret_cast<Pack*>(ring_of_tiles);
  }

  __device__ __forceinline__ void stand_at(int number, int turn) {
    const Unit<Spec> unit = place_.unit(number);
    number_ = number;
    turn_ = turn;
    turns_ = unit.turns;
    neuron_ = unit.neuron(turn);
  }

  template <class Copy>
  __device__ __forceinline__ void next(Copy&& copy) const {
    if (turn_ < turns_) copy(*this, neuron_);
    end_of_copies();
  }

  const Place<Spec>& place_;
  int slot_ = 0;
  // The tile that is copied next.
  int number_, turn_, turns_;
  long long neuron_;
};

}  // namespace ring
}  // namespace layers
}  // namespace spikeforge
