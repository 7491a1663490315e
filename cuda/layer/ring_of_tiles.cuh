// Distribution of neurons with channels over the blocks of one launch (RingTiles): a thread's place, the ring of tiles
// in flight, and sums over channels that blocks share.
//
// Short names: W neurons per thread; S sums per channel.
#pragma once

#include "csrc/kernels/layer/arguments.h"
#include "cuda/divisor.cuh"
#include "cuda/multistep/multistep.cuh"
#include "cuda/published_sums.cuh"

namespace spikeforge {
namespace layers {
namespace ring {

// A block's part of a strip, and the thread's part of that: a number of turns at a fixed distance from each
// other.
template <class Spec> struct Unit {
  using Neurons = typename Multistep<Spec>::Neurons;
  int number, strip;
  int column;  // the thread's first neuron, within the period
  int turns;   // 0: the thread has no neurons
  unsigned first, apart;

  __device__ __forceinline__ unsigned neuron(int turn) const { return first + static_cast<unsigned>(turn) * apart; }
  __device__ __forceinline__ Neurons neurons(int turn) const {
    const long long n = neuron(turn);
    return {n, n};
  }
};

// The place of a block and of a thread in it; divisions are done once. There are at most 2^30 neurons, so an index fits
// in a register. The index of elements after the last tile may wrap, and is not used.
template <class Spec> struct Place {
  static constexpr int W = Spec::width;
  const RingTiles& tiles;
  int first_strip, member;  // the first strip of the block, and the index of the block in it
  int column, turns;        // of the thread, in strips that are wide enough
  unsigned row, apart;

  __device__ __forceinline__ explicit Place(const RingTiles& tiles) : tiles(tiles) {
    const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const int below = quotient(thread, tiles.by_across), rows = tiles.members * tiles.down;
    first_strip = quotient(block, tiles.by_members);
    member = block - first_strip * tiles.members;
    column = (thread - below * tiles.across) * W;
    const int at = member * tiles.down + below;
    turns = below < tiles.down && at < tiles.rows ? quotient(tiles.rows - 1 - at, tiles.by_rows) + 1 : 0;
    row = static_cast<unsigned>(at) * static_cast<unsigned>(tiles.period);
    apart = static_cast<unsigned>(rows) * static_cast<unsigned>(tiles.period);
  }

  __device__ __forceinline__ int width() const { return tiles.across * W; }  // of a strip
  __device__ __forceinline__ int first_channel(int strip) const { return quotient(strip * width(), tiles.by_inner); }

  // Returns a unit without turns for a number outside the block's units.
  __device__ __forceinline__ Unit<Spec> unit(int number) const {
    const int strip = first_strip + number * tiles.strips_apart, at = strip * width() + column;
    const bool is_there =
        static_cast<unsigned>(number) < static_cast<unsigned>(tiles.units) && strip < tiles.strips && at < tiles.period;
    return {number, strip, at, is_there ? turns : 0, is_there ? row + static_cast<unsigned>(at) : 0, apart};
  }

  // The channels of a strip are its local channels; a block numbers the channels of all its units. One of the blocks
  // with a part of a channel adds up the parts.
  struct Channel {
    int index;  // -1: no channel
    int strip, local;
    bool is_own;  // the block adds up its parts
  };
  __device__ __forceinline__ Channel channel(int number) const {
    const int unit = quotient(number, tiles.by_local_channels);
    return channel(first_strip + unit * tiles.strips_apart, number - unit * tiles.local_channels, unit < tiles.units);
  }
  __device__ __forceinline__ Channel channel(int strip, int local, bool is_unit = true) const {
    const int c = first_channel(strip) + local, from = c * tiles.inner, begin = strip * width();
    const bool is_there = is_unit && strip < tiles.strips && c < tiles.channels && from < begin + width();
    const bool is_own =
        from >= begin && local >= member * tiles.own_channels && local < (member + 1) * tiles.own_channels;
    return {is_there ? c : -1, strip, local, is_there && is_own};
  }
};

// The channels of a thread's neurons, as the block numbers them.
template <int W> struct ChannelsOfLanes {
  int of[W];

  template <class Spec> __device__ __forceinline__ ChannelsOfLanes(const Place<Spec>& place, const Unit<Spec>& unit) {
    const int inner = place.tiles.inner, column = unit.turns > 0 ? unit.column : unit.strip * place.width();
    int channel = quotient(column, place.tiles.by_inner), within = column - channel * inner;
    channel += unit.number * place.tiles.local_channels - place.first_channel(unit.strip);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      of[k] = channel;
      const bool is_last = ++within == inner;
      channel += is_last;
      within = is_last ? 0 : within;
    }
  }
};

// Calls use(unit) for the block's part of each of its strips; the second function in reverse order.
template <class Spec, class Use> __device__ __forceinline__ void for_units(const Place<Spec>& place, Use&& use) {
#pragma unroll 1
  for (int u = 0; u < place.tiles.units; ++u) use(place.unit(u));
}
template <class Spec, class Use>
__device__ __forceinline__ void for_units_backwards(const Place<Spec>& place, Use&& use) {
#pragma unroll 1
  for (int u = place.tiles.units - 1; u >= 0; --u) use(place.unit(u));
}

// ---- sums of channels ----

// The sum over the threads of a warp at multiples of `apart`, a power of two.
__device__ __forceinline__ float sum_of_warp(float sum, int apart = 1) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    if (distance >= apart) sum += __shfl_xor_sync(~0u, sum, distance);
  return sum;
}

// The memory in which blocks publish sums over channels: each block publishes its parts, [strips, members, local
// channels], and for channels with many parts one block publishes the sum, [channels].
template <int S> class SumsOfChannels {
 public:
  __device__ __forceinline__ SumsOfChannels(const RingTiles& tiles, void* memory)
      : tiles_(tiles),
        parts_(static_cast<PublishedSums<S>*>(memory)),
        totals_(parts_ + tiles.strips * tiles.members * tiles.local_channels) {}

  // The sums that the block will publish.
  template <class Spec>
  __device__ __forceinline__ void clear(const Place<Spec>& place, const typename Place<Spec>::Channel& channel) const {
    if (channel.index < 0) return;
    part(channel.strip, channel.local, place.member)->clear();
    if (channel.is_own && tiles_.has_totals) totals_[channel.index].clear();
  }

  __device__ __forceinline__ PublishedSums<S>* part(int strip, int local, int member) const {
    return parts_ + (strip * tiles_.members + member) * tiles_.local_channels + local;
  }

  // Publishes the sums of the channels that this block adds up for all blocks, if any. Neighbouring threads of a warp
  // process neighbouring channels.
  template <class Block, class Spec> __device__ __forceinline__ void publish_totals(const Place<Spec>& place) const {
    if (!tiles_.has_totals) return;
    const int thread = static_cast<int>(threadIdx.x), beside = tiles_.own_beside, own = tiles_.own_channels;
    const int right = (thread % 32) & (beside - 1), share = thread % 32 / beside;
#pragma unroll 1
    for (int unit = 0, strip = place.first_strip; unit < tiles_.units; ++unit, strip += tiles_.strips_apart)
#pragma unroll 1
      for (int i0 = thread / 32 * beside; i0 < own; i0 += Block::threads / 32 * beside) {
        const int local = place.member * own + i0 + right;
        const auto channel = place.channel(strip, local);
        const bool is_own = i0 + right < own && local < tiles_.local_channels && channel.is_own;
        float sums[S] = {};
        if (is_own) wait_for_parts<8>(channel.index, share, 32 / beside, sums);
#pragma unroll
        for (int s = 0; s < S; ++s) sums[s] = sum_of_warp(sums[s], beside);
        if (is_own && share == 0) totals_[channel.index].publish(0, sums);
      }
  }

  // Called by one thread.
  __device__ __forceinline__ void of_channel(int channel, float (&sums)[S]) const {
    if (tiles_.has_totals)
      PublishedSums<S>::template wait_and_add<1>(0, 1, 1, sums, [&](int) { return totals_ + channel; });
    else
      wait_for_parts<S <= 2 ? 8 : 4>(channel, 0, 1, sums);  // more would fill the registers
  }

 private:
  // The parts of the earlier members of the strip precede; in later strips it is the first channel.
  template <int at_once>
  __device__ __forceinline__ void wait_for_parts(int channel, int first, int stride, float (&sums)[S]) const {
    const int left = quotient(channel * tiles_.inner, tiles_.by_width),
              right = quotient((channel + 1) * tiles_.inner - 1, tiles_.by_width),
              local = channel - quotient(left * static_cast<int>(tiles_.by_width.divisor), tiles_.by_inner);
    const PublishedSums<S>* const of_strips = part(left, 0, 0);
    PublishedSums<S>::template wait_and_add<at_once>(
        first, (right - left + 1) * tiles_.members, stride, sums,
        [&](int i) { return of_strips + i * tiles_.local_channels + (i < tiles_.members ? local : 0); });
  }

  const RingTiles& tiles_;
  PublishedSums<S>* const parts_;
  PublishedSums<S>* const totals_;
};

// A thread's sums for a local channel: over its neurons in the rows of a tile, which `sharers` threads process in a
// loop.
template <class Spec, int pitch> class ShareOfChannel {
 public:
  static constexpr int W = Spec::width;
  const int number, local;
  const bool is_there;

  __device__ __forceinline__ ShareOfChannel(const Place<Spec>& place, int strip)
      : number(quotient(static_cast<int>(threadIdx.x), place.tiles.by_local_channels)),
        local(static_cast<int>(threadIdx.x) - number * place.tiles.local_channels),
        is_there(number < place.tiles.sharers && place.channel(strip, local).index >= 0),
        tiles_(place.tiles),
        width_(place.width()),
        from_((place.first_channel(strip) + local) * place.tiles.inner - strip * width_) {}

  // The sum of the values at [lane * pitch + thread].
  template <int n>
  __device__ __forceinline__ void add_up(const float (&of_lanes)[n][W * pitch], float (&sums)[n]) const {
    constexpr int at_once = 4;
    const int span = static_cast<int>(tiles_.by_span.divisor), left = from_ > 0 ? from_ : 0,
              right = from_ + tiles_.inner < width_ ? from_ + tiles_.inner : width_;
    const int rows = quotient(tiles_.sharers, tiles_.by_span), columns = tiles_.sharers - rows * span;
    int row = quotient(number, tiles_.by_span), column = number - row * span;
#pragma unroll 1
    while (is_there && row < tiles_.down) {
      float values[at_once][n] = {};
#pragma unroll
      for (int u = 0; u < at_once; ++u) {
        const int j = left + column, at = j % W * pitch + row * tiles_.across + j / W;
        if (row < tiles_.down && j < right)
#pragma unroll
          for (int s = 0; s < n; ++s) values[u][s] = of_lanes[s][at];
        row += rows;
        column += columns;
        const bool is_over = column >= span;
        row += is_over;
        column -= is_over ? span : 0;
      }
#pragma unroll
      for (int u = 0; u < at_once; ++u)
#pragma unroll
        for (int s = 0; s < n; ++s) sums[s] += values[u][s];
    }
  }

 private:
  const RingTiles& tiles_;
  const int width_, from_;  // the channel's first neuron, in the strip
};

// Reduces each thread's sums of its lanes to sums of the strip's channels, two of them at once: first each thread
// computes a share, then one thread adds up the shares of a channel, or one warp if there are many. Loops are not
// unrolled: code that runs once is limited by instruction fetches.
template <class Block, class Spec, int S, int W>
__device__ __forceinline__ void publish_sums(const Place<Spec>& place, int strip, const float (&sums)[S][W],
                                             const SumsOfChannels<S>& all) {
  constexpr int pitch = Block::threads + 32 / W;  // neighbours lie in different banks
  constexpr int at_once = S < 2 ? S : 2, warps = Block::threads / 32, few = 16;
  __shared__ float of_lanes[at_once][W * pitch];
  __shared__ float of_shares[at_once][Block::threads];
  const int thread = static_cast<int>(threadIdx.x), channels = place.tiles.local_channels,
            sharers = place.tiles.sharers;
  const ShareOfChannel<Spec, pitch> own(place, strip);
#pragma unroll
  for (int s0 = 0; s0 < S; s0 += at_once) {
#pragma unroll
    for (int s = 0; s < at_once; ++s)
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (s0 + s < S) of_lanes[s][k * pitch + thread] = sums[s0 + s][k];
    __syncthreads();
    float sum[at_once] = {};
    own.add_up(of_lanes, sum);
#pragma unroll
    for (int s = 0; s < at_once; ++s) of_shares[s][thread] = sum[s];
    __syncthreads();
    const auto add_shares = [&](int local, int first, int stride) {
#pragma unroll
      for (int s = 0; s < at_once; ++s) sum[s] = 0.f;
#pragma unroll 1
      for (int q = first; q < sharers; q += stride)
#pragma unroll
        for (int s = 0; s < at_once; ++s) sum[s] += of_shares[s][q * channels + local];
    };
    if (sharers < few) {
      if (own.number > 0 || !own.is_there) continue;
      add_shares(own.local, 0, 1);
      all.part(strip, own.local, place.member)->publish(s0, sum);
    } else {
#pragma unroll 1
      for (int local = thread / 32; local < channels; local += warps) {
        add_shares(local, thread % 32, 32);
#pragma unroll
        for (int s = 0; s < at_once; ++s) sum[s] = sum_of_warp(sum[s]);
        if (thread % 32 == 0 && place.channel(strip, local).index >= 0)
          all.part(strip, local, place.member)->publish(s0, sum);
      }
    }
  }
}

// ---- the ring: the tiles in flight, in shared memory ----
//
// A thread copies what it reads itself, so that no thread waits for another. After the first pass over the tiles the
// last of them are still there, and the second pass begins with these; the cache is instructed to keep as many of the
// tiles before them as fit.

template <class Spec, class Block, int kinds> class Ring {
 public:
  using Input = typename Spec::Input;
  using Pack = typename Multistep<Spec>::InputPack;

  __device__ __forceinline__ explicit Ring(const Place<Spec>& place) : place_(place) { stand_at(0, 0); }

  // Starts to copy the first tiles. copy(ring, neuron, policy) copies the rows of a tile.
  template <class Copy> __device__ __forceinline__ void fill(Copy&& copy) {
#pragma unroll 1
    for (int i = 0; i < Block::ahead; ++i) copy_next(copy);
  }

  // Advances to the next tile, and starts to copy another if one is left.
  template <class Copy> __device__ __forceinline__ void go_down(Copy&& copy) {
    copy_next(copy);
    slot_ = behind(slot_);
  }

  // After the last tile: reverses the order. Tiles that are still in the ring need no copy.
  __device__ __forceinline__ void turn() {
    const int each = place_.tiles.each, tile = first_in_ring() - 1;
    slot_ = to_ = before(slot_);
    staying_ = Block::slots - Block::ahead;
    const int number = tile < 0 ? -1 : tile / each;
    stand_at(number, tile < 0 ? 0 : tile - number * each);
  }

  template <class Copy> __device__ __forceinline__ void go_up(Copy&& copy) {
    slot_ = before(slot_);
    if (--staying_ >= 0) {
      end_of_copies();
      return;
    }
    next(copy, false);
    to_ = before(to_);
    neuron_ -= place_.apart;
    if (--turn_ < 0) stand_at(number_ - 1, place_.tiles.each - 1);
  }

  __device__ __forceinline__ void wait() const {
    wait_for_copies<Block::ahead - 1>();
    if constexpr (team > 1) __syncwarp();
  }
  __device__ __forceinline__ const Place<Spec>& place() const { return place_; }

  __device__ __forceinline__ Pack& row(int kind, int t) const {
    return *row(slot_, kind, t, static_cast<int>(threadIdx.x));
  }

  __device__ __forceinline__ void copy(int kind, const spikeforge::Rows& rows, int steps, long long neuron,
                                       CachePolicy policy) const {
    const int of_team = static_cast<int>(threadIdx.x) % team, first = static_cast<int>(threadIdx.x) - of_team;
    const Input* from = static_cast<const Input*>(rows.data) + (neuron - of_team * Spec::width);
    from += of_team * rows.time_stride;
#pragma unroll
    for (int t = 0; t < Block::steps; t += team) {
      if (Block::is_exact || t + of_team < steps)
        stream_to_shared<team * sizeof(Pack)>(row(to_, kind, t + of_team, first), from, policy);
      from += team * rows.time_stride;
    }
  }

 private:
  static constexpr int size = kinds * Block::steps * Block::threads;  // packs of a slot
  static __device__ __forceinline__ int behind(int slot) { return slot == (Block::slots - 1) * size ? 0 : slot + size; }
  static __device__ __forceinline__ int before(int slot) { return slot == 0 ? (Block::slots - 1) * size : slot - size; }
  // The number of neighbouring threads that copy the packs of all of them, 16 bytes at once. The steps are divided
  // among them.
  static constexpr int team = Block::team;
  static_assert(Block::steps % team == 0, "a step for each");

  static __device__ __forceinline__ Pack* row(int slot, int kind, int t, int thread) {
    return packs() + slot + (kind * Block::steps + t) * Block::threads + thread;
  }

  static __device__ __forceinline__ Pack* packs() {
    extern __shared__ __align__(16) unsigned char ring_of_tiles[];
    return reinterpret_cast<Pack*>(ring_of_tiles);
  }

  // Returns the first of the tiles that stay in shared memory for the second pass.
  __device__ __forceinline__ int first_in_ring() const { return place_.tiles.units * place_.tiles.each - Block::slots; }

  __device__ __forceinline__ void stand_at(int number, int turn) {
    const Unit<Spec> unit = place_.unit(number);
    number_ = number;
    turn_ = turn;
    turns_ = unit.turns;
    neuron_ = unit.neuron(turn);
  }

  // Copies the next tile in ascending order.
  template <class Copy> __device__ __forceinline__ void copy_next(Copy&& copy) {
    const int later = first_in_ring() - (number_ * place_.tiles.each + turn_);
    next(copy, 0 < later && later <= place_.tiles.kept);
    to_ = behind(to_);
    neuron_ += place_.apart;
    if (++turn_ == place_.tiles.each) stand_at(number_ + 1, 0);
  }

  template <class Copy> __device__ __forceinline__ void next(Copy&& copy, bool stays_in_cache) const {
    if constexpr (team > 1) __syncwarp();
    if (turn_ < turns_)
      copy(*this, neuron_,
           stays_in_cache || !place_.tiles.streams ? CachePolicy::evict_normal() : CachePolicy::evict_first());
    end_of_copies();
  }

  const Place<Spec>& place_;
  int slot_ = 0;  // the slot that is read
  // The slot of the tile that is copied next, and its number among the tiles that stay.
  int to_ = 0, staying_ = 0;
  int number_, turn_, turns_;
  unsigned neuron_;
};

}  // namespace ring
}  // namespace layers
}  // namespace spikeforge
