// Shared by the forward and the backward loop over time of a recurrent layer on the GPU (forward.cuh, backward.cuh):
// the distribution of work, rows in flight, the messages between steps, and their product. A cell's first output is
// added to one of its inputs at the next step, through a matrix that stays in registers. The loops run any cell, as the
// multistep loop does, and share its construction of cells, states and parameters.
//
// geometry.h describes how neurons and samples are distributed over blocks. The results of a step, spikes forward and
// gradients of the current backward, are sent as 16-bit numbers to every block of the cluster by stores that count
// their bytes on a barrier of the receiver: a step waits for a single message. In a large cluster, values are written
// to global memory, and one copy sends them to all blocks, because separate stores to each block would occupy the
// network for longer than the rest of a step. A step receives the results of `delay` steps before. Buffers for twice as
// many steps suffice, because no block can be further ahead. A single block uses its shared memory and __syncthreads.
//
// A float32 weight is split into three bf16 values, and so is a sent value that is not a spike. Products below
// float32's precision are skipped. Within a cluster, spikes are sent as bits.
//
// A Spec, printed by csrc/kernels/recurrent/spec.cpp, has the members that the multistep loop needs, for one neuron per
// thread, and:
//   geometry     geometry.h
//   into         the input to which the product is added
//   vectors      true if a lane's neurons are read in one access
//   has_first    forward: true if outputs before the first step are given; else they are 0
//   save         forward: true if currents and checkpoints are saved
//   has_lengths, has_start   as in the multistep loop; the arguments are then WithSamples
//
// Short names: F type of the arithmetic; T type of x and y; E element type of a row in flight; I, O, S, P numbers of
// inputs, outputs, states and parameters of the cell; C steps between checkpoints; H padded neurons of a sample; W
// neurons and G samples of a lane.
#pragma once

#include "csrc/kernels/recurrent/geometry.h"
#include "cuda/cluster.cuh"
#include "cuda/half.cuh"
#include "cuda/multistep/multistep.cuh"
#include "cuda/recurrent/samples.cuh"

namespace spikeforge {

// The host ensures that strides fit in 32 bits: their product with a step is one instruction.
__device__ __forceinline__ long long times(int t, long long stride) {
  return static_cast<long long>(static_cast<unsigned long long>(static_cast<unsigned>(t)) *
                                static_cast<unsigned>(stride));
}
template <class E> __device__ __forceinline__ const E* row_of(const Rows& rows, int t) {
  return static_cast<const E*>(rows.data) + times(t, rows.time_stride);
}

// The rows of a sequence, in order. With a moving pointer, the address of an element is one instruction.
template <class E> struct WalkedRows {
  E* row;
  long long stride;  // to the next row

  WalkedRows() = default;
  __device__ __forceinline__ WalkedRows(const Rows& rows, int from, int by)
      : row(row_of<E>(rows, from)), stride(by * rows.time_stride) {}
  __device__ __forceinline__ WalkedRows(void* data, long long time_stride, int from, int by)
      : row(static_cast<E*>(data) + times(from, time_stride)), stride(by * time_stride) {}

  __device__ __forceinline__ void next() { row += stride; }
};

// A store without a branch: the compiler moves no instruction across a branch, and a step has few other instructions to
// hide its latencies.
template <class Words> __device__ __forceinline__ void store_if(bool wanted, Words* to, const Words& value) {
  static_assert(sizeof(Words) == 4 || sizeof(Words) == 8 || sizeof(Words) == 16, "");
  const auto* const words = reinterpret_cast<const unsigned*>(&value);
  const unsigned is_wanted = wanted ? 1 : 0;
  if constexpr (sizeof(Words) == 4)
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.b32 [%1], %2;}" ::"r"(is_wanted), "l"(to),
                 "r"(words[0])
                 : "memory");
  else if constexpr (sizeof(Words) == 8)
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3};}" ::"r"(is_wanted),
                 "l"(to), "r"(words[0]), "r"(words[1])
                 : "memory");
  else
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, %5};}" ::"r"(is_wanted),
                 "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

// Products of tensor cores, D += A B with 16-bit numbers and float32 sums.
//
// In m16n8k16, lane 4 q + c of a warp holds: rows q and q + 8 and columns 2 c and 2 c + 1 of D, in d[2 * (row / 8) +
// column % 2]; two numbers of A that are one k apart in each word, rows q and q + 8 and k = 2 c and 2 c + 8, in a[row /
// 8 + 2 * (k / 8)]; column q and k = 2 c and 2 c + 8 of B, in b[k / 8].
#define SPIKEFORGE_MULTIPLY_ADD(type)                                                                                 \
  template <>                                                                                                         \
  __device__ __forceinline__ void multiply_add<type>(float(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type                                                      \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                        \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                              \
  }
template <class Half>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
SPIKEFORGE_MULTIPLY_ADD(f16)
SPIKEFORGE_MULTIPLY_ADD(bf16)
#undef SPIKEFORGE_MULTIPLY_ADD

// Splits two values into pairs of 16-bit values whose sums they are: one for a 16-bit type, three bf16 for float32,
// which together have its 24 bits.
template <class Half, int pieces>
__device__ __forceinline__ void split_pair(float first, float second, unsigned (&words)[pieces]) {
#pragma unroll
  for (int p = 0; p < pieces; ++p) {
    words[p] = pack_pair<Half>(first, second);
    float rounded_first, rounded_second;
    unpack_pair<Half>(words[p], rounded_first, rounded_second);
    first -= rounded_first;
    second -= rounded_second;
  }
}

template <class Spec> struct Recurrent {
  using Loop = Multistep<Spec>;
  using Cell = typename Spec::Cell;
  using T = typename Spec::Input;
  using F = typename Spec::Compute;
  static constexpr int I = Cell::n_inputs, O = Cell::n_outputs, S = Cell::n_states, P = Cell::n_params;
  static constexpr int C = Spec::checkpoint;

  static constexpr recurrent::Geometry shape = Spec::geometry;
  static constexpr int H = shape.padded, blocks = shape.blocks, tiles = shape.tiles, row_neurons = shape.row,
                       split = shape.split, delay = shape.delay;
  static constexpr int own = shape.own(), threads = shape.threads(), block = shape.block(), ahead = shape.ahead;
  static constexpr int W = shape.lane_neurons(), G = shape.lane_samples();
  static constexpr int exchange_bytes = shape.exchange_bytes(), partial_bytes = shape.partial_bytes();
  static constexpr int m_tiles = row_neurons / 16, k_tiles = H / 16 / split;  // tiles of a warp
  static_assert(own % 32 == 0 && H == blocks * own && H % (32 * split) == 0, "whole warps and pairs of tiles");
  static_assert(m_tiles == 1 || m_tiles == 2, "");
  static_assert(sizeof(T) == shape.element && sizeof(F) == 4, "");

  static constexpr bool in_pieces = sizeof(T) == 4;
  static constexpr int pieces = in_pieces ? 3 : 1;       // bf16 values per weight
  static constexpr bool as_bits = shape.sent == 0;       // the sent values are spikes as bits,
  static constexpr int sent = as_bits ? 1 : shape.sent;  // or this many 16-bit values each
  static_assert(!as_bits || blocks > 1, "");
  static constexpr bool by_memory = shape.by_memory;
  static_assert(!by_memory || (!as_bits && blocks > 1), "");
  using Half = typename Spec::Half;

  using Values = F[G][W];  // a lane's values in a tile
  using Numbers = Pack<T, W, true>;
  using StateNumbers = Pack<F, W, true>;
  using Samples = LayerSamples<Spec>;

  // A lane's constant, kept in a register: otherwise the compiler would recompute it in each step.
  static __device__ __forceinline__ int kept(int x) { return __shfl_sync(~0u, x, threadIdx.x % 32); }
  static __device__ __forceinline__ unsigned char* kept(unsigned char* shared) {
    return static_cast<unsigned char*>(
        __cvta_shared_to_generic(static_cast<unsigned>(kept(static_cast<int>(shared_address(shared))))));
  }

  // In a single block, the results of a step are stored while the tensor cores compute the next: nothing else takes
  // long enough to hide the store.
  static constexpr bool deferred = blocks == 1 && tiles == 1;
  // The number of steps by which the loop over time is unrolled, each with separate registers: a result that overwrites
  // a register of a pending store would wait for the store.
  static constexpr int unrolled = deferred ? 2 : 1;

  // Barriers from 1 on are of rows of warps that share a sum.
  static_assert(split == 1 || own / row_neurons < 15, "a block has 16 barriers");
  static __device__ __forceinline__ void meet(int threads_that_meet) { named_barrier(15, threads_that_meet); }

  // ---- distribution of work ----

  // The neurons and samples that a lane owns. Lanes after the last neuron or sample compute the last one again, and
  // discard the results.
  struct Lane {
    int lane, q, c, row, part, rank;  // row: the index of the row of warps
    int neuron, width, batch;
    int first_tile, count;  // of tiles
    int first[G];           // for a single tile: the index of the lane's first neuron

    template <class Args> __device__ __forceinline__ explicit Lane(const Args& a) {
      lane = threadIdx.x % 32;
      const int warp = threadIdx.x % threads / 32;
      q = lane / 4;
      c = lane % 4;
      row = kept(warp / split);
      part = kept(warp % split);
      rank = blocks > 1 ? rank_in_cluster() : 0;
      neuron = kept(first_of_row() + (split == 4 ? part / 2 * 16 : 0) + W * q);
      width = static_cast<int>(a.width);
      batch = static_cast<int>(a.batch);
      const int all = (batch + 7) / 8, cluster = blockIdx.x / blocks, clusters = gridDim.x / blocks;
      // If tiles do not divide evenly, the first clusters have one tile more. Therefore the last cluster may start
      // after the last tile.
      first_tile = cluster * (all / clusters) + ::min(cluster, all % clusters);
      count = all / clusters + (cluster < all % clusters ? 1 : 0);
#pragma unroll
      for (int g = 0; g < (tiles == 1 ? G : 0); ++g) first[g] = kept(find(0, g, 0));
    }

    __device__ __forceinline__ int first_of_row() const { return rank * own + row * row_neurons; }
    // The sample of element g among the eight of a tile.
    __device__ __forceinline__ int sample(int g) const { return 2 * c + (split == 1 ? g : part % 2); }
    __device__ __forceinline__ bool has_sample(int n, int g) const { return (first_tile + n) * 8 + sample(g) < batch; }
    __device__ __forceinline__ bool has_neuron(int j) const { return neuron + (Spec::vectors ? 0 : j) < width; }

    // The index among the N neurons of all samples.
    __device__ __forceinline__ int index(int n, int g, int j) const {
      return tiles == 1 && Spec::vectors ? first[g] + j : find(n, g, j);
    }
    __device__ __forceinline__ int find(int n, int g, int j) const {
      const int b = ::min((first_tile + n) * 8 + sample(g), batch - 1);
      const int h = Spec::vectors ? ::min(neuron, width - W) + j : ::min(neuron + j, width - 1);
      return b * width + h;
    }

    template <class E> __device__ __forceinline__ Pack<E, W, true> load(const E* row, int n, int g) const {
      Pack<E, W, true> numbers;
      if constexpr (Spec::vectors) {
        numbers = *reinterpret_cast<const Pack<E, W, true>*>(row + index(n, g, 0));
      } else {
        E* const to = reinterpret_cast<E*>(&numbers);
#pragma unroll
        for (int j = 0; j < W; ++j) to[j] = row[index(n, g, j)];
      }
      return numbers;
    }
    template <class E>
    __device__ __forceinline__ void store(E* row, int n, int g, const Pack<E, W, true>& numbers) const {
      if (!has_sample(n, g)) return;
      if constexpr (Spec::vectors) {
        if (has_neuron(0)) *reinterpret_cast<Pack<E, W, true>*>(row + index(n, g, 0)) = numbers;
      } else {
        const E* const from = reinterpret_cast<const E*>(&numbers);
#pragma unroll
        for (int j = 0; j < W; ++j)
          if (has_neuron(j)) row[index(n, g, j)] = from[j];
      }
    }
    // The same without a branch for vectors. The backward pass was faster with branches.
    template <class E>
    __device__ __forceinline__ void store_unbranched(E* row, int n, int g, const Pack<E, W, true>& numbers,
                                                     bool wanted = true) const {
      if constexpr (Spec::vectors)
        store_if(wanted && has_sample(n, g) && has_neuron(0), reinterpret_cast<Pack<E, W, true>*>(row + index(n, g, 0)),
                 numbers);
      else if (wanted)
        store(row, n, g, numbers);
    }
  };

  struct Cells {
    typename Loop::Cells of[W];

    template <class Args>
    __device__ __forceinline__ Cells(const Args& a, const Lane& at) : Cells(a, at, typename IndicesBelow<W>::type{}) {}

    __device__ __forceinline__ const Cell& operator[](int j) const { return of[j].cell[0]; }

   private:
    template <class Args, int... j>
    __device__ __forceinline__ Cells(const Args& a, const Lane& at, Indices<j...>)
        : of{typename Loop::Cells(a, neuron(at.index(0, 0, j)))...} {}
  };

  static __device__ __forceinline__ typename Loop::Neurons neuron(int i) { return Lanes<1, Spec::neighbours>{i, i}; }

  using States = F[G][W][room(S)];

  template <class Args>
  static __device__ __forceinline__ void load_initial(const Args& a, const Cells& cells, const Lane& at, int n,
                                                      States& state) {
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int j = 0; j < W; ++j) {
        F one[1][room(S)];
        Loop::load_initial(a, cells.of[j], neuron(at.index(n, g, j)), one);
#pragma unroll
        for (int s = 0; s < S; ++s) state[g][j][s] = one[0][s];
      }
  }

  static __device__ __forceinline__ StateNumbers pack_state(const States& state, int g, int s) {
    StateNumbers numbers;
#pragma unroll
    for (int j = 0; j < W; ++j) numbers.lane[j] = state[g][j][s];
    return numbers;
  }

  // ---- samples ----

  // Replaces the state of a sample that restarts before step t by the cell's initial state.
  static __device__ __forceinline__ void restart(const Cells& cells, const Samples& samples, int t, int n,
                                                 States& state) {
    if constexpr (Samples::has_start)
#pragma unroll
      for (int g = 0; g < G; ++g)
        if (samples.starts_before(t, n, g))
#pragma unroll
          for (int j = 0; j < W; ++j) cells[j].initial(state[g][j]);
  }

  static __device__ __forceinline__ void drop_after_restart(Samples& samples, int n, Values& sums) {
    if constexpr (Samples::has_start)
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const bool is_fed_back = samples.is_fed_back(n, g);
#pragma unroll
        for (int j = 0; j < W; ++j) sums[g][j] = select(is_fed_back, sums[g][j], F(0));
      }
  }

  // Clears the rows after the last step of the cluster's samples.
  template <class E, class Args>
  static __device__ __forceinline__ void clear_behind(const Args& a, const Lane& at, const Samples& samples,
                                                      void* data) {
    if constexpr (Samples::has_lengths)
      for (int t = samples.steps; t < static_cast<int>(a.steps); ++t)
        for (int n = 0; n < at.count; ++n)
#pragma unroll
          for (int g = 0; g < G; ++g) at.store(static_cast<E*>(data) + times(t, a.neurons), n, g, Pack<E, W, true>{});
  }

  // ---- rows in flight ----

  // A lane's values of several rows, in shared memory. No other lane reads them.
  template <class E, int depth> struct Ring {
    using Slot = Pack<E, W, true>;
    static constexpr int bytes = depth * tiles * G * threads * static_cast<int>(sizeof(Slot));
    Slot* memory;

    __device__ __forceinline__ Ring() {}
    __device__ __forceinline__ explicit Ring(unsigned char*& at)
        : memory(reinterpret_cast<Slot*>(at) + kept(threadIdx.x % threads)) {
      at += bytes;
    }

    __device__ __forceinline__ Slot& slot(int row, int n, int g) const {
      return memory[((static_cast<unsigned>(row) % depth * tiles + n) * G + g) * threads];
    }

    __device__ __forceinline__ void load(int row, const E* from, const Lane& at) const {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        if (n > 0 && n >= at.count) break;
#pragma unroll
        for (int g = 0; g < G; ++g) {
          if constexpr (Spec::vectors)
            copy_to_shared<sizeof(Slot)>(&slot(row, n, g), from + at.index(n, g, 0));
          else
            slot(row, n, g) = at.load(from, n, g);
        }
      }
    }

    __device__ __forceinline__ void fill(int row, E value, const Lane& at) const {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        if (n > 0 && n >= at.count) break;
#pragma unroll
        for (int g = 0; g < G; ++g) slot(row, n, g).fill(value);
      }
    }
  };

  // ---- messages between steps ----

  // The offset of a neuron's value in a tile's message. The values of a warp fill whole lines of 128 bytes, the unit of
  // transfers, and a warp's reads, 16 bytes per lane, access each bank once.
  static __device__ __forceinline__ int place(int sample, int neuron) {
    const int odd = sample % 2, tile = neuron / 16 % 2;
    return neuron / 32 * 512 + (W == 4 ? odd * 256 + (sample / 2 ^ odd) * 64 + neuron % 32 * 2
                                       : tile * 256 + odd * 128 + (sample / 2 ^ odd ^ 2 * tile) * 32 + neuron % 16 * 2);
  }
  static constexpr int piece_bytes = 16 * H;
  // The same for bits: [neuron / 32][sample % 2][four words]. The index of the word is c of the lane that owns the
  // samples.
  static __device__ __forceinline__ int bits_place(int odd, int neuron) {
    return neuron / 32 * 32 + odd * 16 + (W == 2 ? neuron / 16 % 2 * 8 : 0);
  }

  // Step t's messages are stored in buffer t % buffers; open() writes those of steps before 0.
  struct Exchange {
    static constexpr int buffers = 2 * delay, message = shape.message_bytes(), buffer = tiles * message;
    static constexpr int masks = Spec::vectors ? 1 : W / 2;
    unsigned char* memory;
    int place_of[G];  // offset of the lane's values in a message, or of the warp's bits
    // Masks for pairs of values. They clear values after the last neuron, which might be infinite and have weights of
    // 0.
    unsigned are_there[masks];
    unsigned receiver;            // address of `memory` in the block that the lane sends bits to
    unsigned char* to_be_copied;  // if by_memory: global memory of the cluster, [buffers][tiles][message]

    __device__ __forceinline__ Exchange(unsigned char*& rest, void* messages, const Lane& at) : memory(rest) {
      rest += exchange_bytes;
      if constexpr (by_memory)
        to_be_copied = static_cast<unsigned char*>(messages) + times(blockIdx.x / blocks, shape.messages_bytes());
#pragma unroll
      for (int g = 0; g < G; ++g)
        place_of[g] = kept(as_bits ? bits_place(at.sample(g) % 2, at.neuron) : place(at.sample(g), at.neuron));
#pragma unroll
      for (int i = 0; i < masks; ++i)
        are_there[i] =
            kept(Spec::vectors ? (at.has_neuron(0) ? ~0u : 0u)
                               : (at.has_neuron(2 * i) ? 0xffffu : 0u) | (at.has_neuron(2 * i + 1) ? ~0xffffu : 0u));
      if constexpr (as_bits) receiver = kept(address_in_block(shared_address(memory), at.lane % blocks));
    }

    static __device__ __forceinline__ int which(int t) { return static_cast<unsigned>(t + buffers) % buffers; }
    __device__ __forceinline__ int offset(int t, int n) const { return which(t) * buffer + n * message; }
    __device__ __forceinline__ int barrier_offset(int t, int n) const {
      return buffers * buffer + 8 * (which(t) * tiles + n);
    }
    __device__ __forceinline__ ByteBarrier barrier(int t, int n) const {
      return {shared_address(memory) + barrier_offset(t, n)};
    }

    // Writes the messages of the steps before 0. `first(t, sample, neuron)` returns a value of such a step; `sample` is
    // an index within the cluster.
    template <class First> __device__ __forceinline__ void open(const First& first) const {
      for (int t = -delay; t < 0; ++t) {
        if (as_bits) {
          for (int i = threadIdx.x; i < buffer / 4; i += threads)
            reinterpret_cast<unsigned*>(memory + offset(t, 0))[i] = 0;
        }
        for (int i = threadIdx.x; !as_bits && i < tiles * 4 * H; i += threads) {
          const int n = i / (4 * H), sample = i / (H / 2) % 8, neuron = i % (H / 2) * 2;
          unsigned words[sent];
          split_pair<Half>(first(t, 8 * n + sample, neuron), first(t, 8 * n + sample, neuron + 1), words);
#pragma unroll
          for (int p = 0; p < sent; ++p)
            *reinterpret_cast<unsigned*>(memory + offset(t, n) + p * piece_bytes + place(sample, neuron)) = words[p];
        }
      }
      if (blocks > 1 && threadIdx.x == 0) {
        for (int t = 0; t < buffers; ++t)
          for (int n = 0; n < tiles; ++n) barrier(t, n).init();
        ByteBarrier::publish();
        for (int t = 0; t < delay; ++t)
          for (int n = 0; n < tiles; ++n) barrier(t, n).expect(message);
      }
      if constexpr (by_memory) leave_to_copies();
      meet();
    }

    // The place in `memory` of the values that step t receives.
    __device__ __forceinline__ int fed_back(int t, int n) const { return offset(t - delay, n); }

    // Waits until the message has arrived.
    __device__ __forceinline__ void wait(int t, int n) const {
      if (blocks == 1) return;
      const unsigned times_used = static_cast<unsigned>(t + delay) / buffers;
      barrier(t - delay, n).wait((times_used & 1) ^ 1);
    }
    // Expects the message of step t + delay. Called after step t has finished waiting; without this call, no phase
    // ends.
    __device__ __forceinline__ void expect(int t, int n) const {
      if (blocks > 1 && threadIdx.x == 0) barrier(t - delay, n).expect(message);
    }

    // Sends the results of every step, including the last ones, which no step receives; close() waits for these. A
    // condition would add a branch to the critical path between steps.
    __device__ __forceinline__ void put(const Lane& at, int t, int n, int g, const Values& values) const {
      if constexpr (as_bits)
        put_bits(at, t, n, g, values);
      else
        put_numbers(at, t, n, g, values);
    }

    // Lane r sends the warp's bits to block r. Only the send is conditional: addresses are computed ahead.
    __device__ __forceinline__ void put_bits(const Lane& at, int t, int n, int g, const Values& values) const {
      unsigned words[W], fired[W];
#pragma unroll
      for (int j = 0; j < W; ++j) fired[j] = __ballot_sync(~0u, values[g][j] != F(0));
#pragma unroll
      for (int j = 0; j < W; j += 2) {
        words[j / 2] = __byte_perm(fired[j], fired[j + 1], 0x5410);  // of lanes below 16
        words[(j + W) / 2] = __byte_perm(fired[j], fired[j + 1], 0x7632);
      }
      const unsigned to = receiver + offset(t, n) + place_of[g], barrier = receiver + barrier_offset(t, n);
      if (at.lane < blocks) send(to, words, barrier);
    }

    __device__ __forceinline__ void put_numbers(const Lane& at, int t, int n, int g, const Values& values) const {
      unsigned words[sent][W / 2];
#pragma unroll
      for (int j = 0; j < W; j += 2) {
        unsigned pair[sent];
        split_pair<Half>(values[g][j], values[g][j + 1], pair);
#pragma unroll
        for (int p = 0; p < sent; ++p) words[p][j / 2] = pair[p] & are_there[Spec::vectors ? 0 : j / 2];
      }
#pragma unroll
      for (int p = 0; p < sent; ++p) {
        const int to = offset(t, n) + p * piece_bytes + place_of[g];
        if constexpr (blocks == 1 || by_memory) {
          Pack<unsigned, W / 2, true> pack;
#pragma unroll
          for (int j = 0; j < W / 2; ++j) pack.lane[j] = words[p][j];
          *reinterpret_cast<Pack<unsigned, W / 2, true>*>((by_memory ? to_be_copied : memory) + to) = pack;
        } else {
          // Each block begins with a different receiver, so that not all blocks send to the same one.
#pragma unroll
          for (int r = 0; r < blocks; ++r) {
            const unsigned there = address_in_block(shared_address(memory), (at.rank + r) % blocks);
            send(there + to, words[p], there + barrier_offset(t, n));
          }
        }
      }
    }

    // Called after all stores of a tile in a step. The values of a warp are stored without gaps for each of their
    // 16-bit parts; one lane sends one part.
    __device__ __forceinline__ void end_of_tile(const Lane& at, int t, int n) const {
      if constexpr (by_memory) {
        constexpr int bytes = 64 * W * G;
        publish_for_copies();
        __syncwarp();
        const int to = offset(t, n) + (place_of[0] & ~(bytes - 1)) + at.lane * piece_bytes;
        send_to_all<blocks>(at.lane < sent, shared_address(memory) + to, to_be_copied + to, bytes,
                            shared_address(memory) + barrier_offset(t, n));
      }
    }

    __device__ __forceinline__ void end_of_step() const {
      if (blocks == 1) named_barrier(0, threads);
    }
    // Synchronises all threads at the start.
    __device__ __forceinline__ void meet() const {
      if (blocks == 1)
        __syncthreads();
      else
        cluster_barrier();
    }
    // A block exits only after all messages to it have arrived.
    __device__ __forceinline__ void close(const Lane& at, int steps) const {
      for (int t = ::max(steps - delay, 0); t < steps; ++t)
        for (int n = 0; n < at.count; ++n) wait(t + delay, n);
    }
  };

  // ---- the product of a step ----

  struct Product {
    unsigned weights[pieces][m_tiles][k_tiles][4];
    StateNumbers *given, *taken;  // partial sums for other warps, and of other warps for this one
    int from;                     // in a message
    int turn;                     // the rotation of a word of bits

    // For W^T, or for W for gradients: a lane reads eight neurons of a message at once, those of two tiles.
    template <bool transposed>
    __device__ __forceinline__ void load(const void* w, const Lane& at, unsigned char*& memory) {
      given = reinterpret_cast<StateNumbers*>(memory) + kept(at.row * split * others * 32 + at.lane);
      taken = given + kept(at.part * others * 32);
      memory += partial_bytes;
      from = kept(as_bits ? at.part * (k_tiles / 2) * 32 + at.q % 2 * 16 + (W == 2 ? at.c * 4 : at.c / 2 * 8)
                          : at.part * (k_tiles / 2) * 512 + place(at.q, 8 * at.c));
      // Moves the bit to bit 14 of a half, which represents 2.
      turn = kept(14 - (at.q / 2 + (W == 2 ? 0 : at.c % 2 * 8)));
#pragma unroll
      for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int k = 0; k < k_tiles; ++k)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int tile = at.part * k_tiles + k;
            const int mine = at.first_of_row() + (W == 2 ? 16 * m + 2 * at.q + e % 2 : 4 * at.q + 2 * m + e % 2);
            const int other = tile / 2 * 32 + 8 * at.c + 4 * (tile % 2) + 2 * (e / 2);
            unsigned words[pieces];
            split_pair<Half>(weight<transposed>(w, at, other, mine), weight<transposed>(w, at, other + 1, mine), words);
#pragma unroll
            for (int p = 0; p < pieces; ++p) weights[p][m][k][e] = words[p];
          }
    }

    // Sums over the neurons of a message, for the lane's own neurons; the message is at this place in memory.
    // `meanwhile` runs while the tensor cores compute. `added`: the result is added to the present sums.
    template <bool added = false, class Meanwhile>
    __device__ __forceinline__ void operator()(const unsigned char* memory, int message, const Lane& at, int n,
                                               Values& sums, const Meanwhile& meanwhile) const {
      const unsigned char* const mine = memory + (message + from);
      float sum[chains][m_tiles][4] = {};
      static_assert(!added || split == 1, "");
      if constexpr (added)
#pragma unroll
        for (int g = 0; g < G; ++g)
#pragma unroll
          for (int j = 0; j < W; ++j) found(sum[chains - 1], 0, g, j) = sums[g][j];
#pragma unroll
      for (int k = 0; k < k_tiles; k += 2)
#pragma unroll
        for (int p = 0; p < sent; ++p) {
          const Pack<unsigned, 4, true> words = read(mine, p, k);
#pragma unroll
          for (int o = 0; o < 2; ++o)
#pragma unroll
            for (int r = 0; r < pieces && p + r < 3; ++r)
#pragma unroll
              for (int m = 0; m < m_tiles; ++m)
                multiply_add<Half>(sum[in_pieces ? p + r : (k + o) % chains][m], weights[r][m][k + o],
                                   words.lane[2 * o], words.lane[2 * o + 1]);
        }
      meanwhile();
      // Adds the smallest sums first.
#pragma unroll
      for (int chain = chains - 1; chain > 0; --chain)
#pragma unroll
        for (int i = 0; i < 4 * m_tiles; ++i) sum[chain - 1][i / 4][i % 4] += sum[chain][i / 4][i % 4];
      share(sum[0], at, n, sums);
    }

    // Bits were multiplied as the value 2.
    static __device__ __forceinline__ F add(F sum, F to) { return as_bits ? fmaf(sum, .5f, to) : to + sum; }

   private:
    // Operand B of two tiles.
    __device__ __forceinline__ Pack<unsigned, 4, true> read(const unsigned char* mine, int p, int k) const {
      if constexpr (!as_bits) {
        return *reinterpret_cast<const Pack<unsigned, 4, true>*>(mine + p * piece_bytes + k * 256);
      } else {
        const auto bits = *reinterpret_cast<const Pack<unsigned, W == 2 ? 1 : 2, true>*>(mine + k * 16);
        Pack<unsigned, 4, true> words;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned word = bits.lane[W == 2 ? 0 : i % 2];
          const int more = W == 2 ? 4 * i : i / 2 * 4;
          words.lane[i] = __funnelshift_l(word, word, turn - more) & 0x40004000u;
        }
        return words;
      }
    }

    static constexpr int others = split - 1;  // the other warps of a row

    // Independent sums; for float32, one for each order of magnitude of the parts.
    static constexpr int chains = in_pieces ? 3 : 4 / m_tiles;

    template <bool transposed>
    static __device__ __forceinline__ float weight(const void* w, const Lane& at, int other, int mine) {
      if (other >= at.width || mine >= at.width) return 0;
      const int i = transposed ? mine * at.width + other : other * at.width + mine;
      return convert<float>(static_cast<const T*>(w)[i]);
    }

    // Exchanges the partial sums of a warp with the warp that owns them.
    template <class Float>
    static __device__ __forceinline__ Float& found(Float (&sum)[m_tiles][4], int owner, int g, int j) {
      if (W == 2) return sum[owner / 2][2 * j + (split == 1 ? g : owner % 2)];
      return sum[j / 2][2 * (j % 2) + (split == 1 ? g : owner)];
    }

    // The index of the partial sums of warp `finder` among those for warp `owner`.
    static __device__ __forceinline__ int place_among(int finder, int owner) {
      return split == 2 ? 0 : (finder - owner - 1) & others;
    }

    // Adds the partial sums of all warps of a row, in a fixed order.
    __device__ __forceinline__ void share(const float (&sum)[m_tiles][4], const Lane& at, int n, Values& sums) const {
      if constexpr (split == 1) {
#pragma unroll
        for (int g = 0; g < G; ++g)
#pragma unroll
          for (int j = 0; j < W; ++j) sums[g][j] = found(sum, 0, g, j);
        return;
      }
      const int tile = n * (own / row_neurons) * split * others * 32;
#pragma unroll
      for (int j = 0; j < W; ++j) sums[0][j] = found(sum, 0, 0, j);
#pragma unroll
      for (int owner = 0; owner < split; ++owner) {
        StateNumbers values;
#pragma unroll
        for (int j = 0; j < W; ++j) values.lane[j] = found(sum, owner, 0, j);
        if (owner == at.part) {
#pragma unroll
          for (int j = 0; j < W; ++j) sums[0][j] = values.lane[j];
        } else {
          given[tile + (owner * others + place_among(at.part, owner)) * 32] = values;
        }
      }
      named_barrier(1 + at.row, 32 * split);
#pragma unroll
      for (int i = 0; i < others; ++i) {
        const StateNumbers values = taken[tile + i * 32];
#pragma unroll
        for (int j = 0; j < W; ++j) sums[0][j] += values.lane[j];
      }
      // If steps do not wait for each other, a warp could write the next sums before these are read.
      if (blocks > 1 && delay > 1) named_barrier(1 + at.row, 32 * split);
    }
  };
};

}  // namespace spikeforge
