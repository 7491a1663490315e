// Steps of a network of populations, any number in one cooperative launch: a block owns neurons, and one grid barrier
// ends a step (two, if spikes are sent together; rounds.cuh has fewer). With peer access between ranks, all ranks run
// at the same time.
//
// In a step a thread takes the sums that arrive for its neuron out of the ring, adds current and drive, runs the
// neuron's cell and publishes its spike. A spike's connections are read from memory and added to the slots in which
// they arrive, by the threads that Sending specifies. While a block waits for the others, it draws the Poisson input of
// the next step.
//
// Sums that arrive at step t are stored in slot t % slots. The owner clears the slot in that step, in which nothing can
// be added to it: delays are 1 to slots - 1.
//
// Short names: F type of the arithmetic; D drives per neuron.
#pragma once

#include "csrc/kernels/network/arguments.h"
#include "csrc/neuron/draws.h"
#include "csrc/neuron/functions.h"
#include "cuda/event/scatter.cuh"
#include "cuda/grid_barrier.cuh"
#include "cuda/multistep/neurons.cuh"

namespace spikeforge {
namespace network {

// min of portable.h is for floating-point types.
__device__ __forceinline__ Int at_most(Int x, Int most) { return x < most ? x : most; }

// The copy of a neuron. Indices are less than 2^31.
__device__ __forceinline__ Int copy_of(const Arguments& net, Int neuron) {
  return static_cast<unsigned>(neuron) / static_cast<unsigned>(net.copy_size);
}

// Consecutive neurons of one cell. Those of a copy are divided into `chunks` of `share` neurons, the last of which may
// be shorter, and the chunks of all copies are divided among blocks. Elements of states and parameters are those of
// copy 0, followed by those of copy 1, and so on.
template <class Cell> struct GroupArguments {
  Int neurons, begin;  // the number of neurons in all copies, and the index of the first in the network
  Int first_block, blocks, share, chunks;
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];                     // not read: inputs are in the ring
  const void* initial[room(Cell::n_states)];  // the states themselves
  ParamSource params[room(Cell::n_params)];
  void* states[room(Cell::n_states)];
};
template <class Cell, bool draws = DrawsOf<Cell>::any> struct GroupOf { using type = GroupArguments<Cell>; };
template <class Cell> struct GroupOf<Cell, true> { using type = WithDraws<GroupArguments<Cell>>; };

// The compile-time choices of a kernel. resident: a block processes all of its neurons at once, and they stay in the
// registers of their threads; at most `at_once` of them.
template <class Matrix_, int drives_, Sending sending_, bool resident_, int threads_, int at_once_, bool has_peers_,
          bool has_copies_, int arriving_ = 0, bool skips_ = false>
struct Plan {
  using Matrix = Matrix_;
  static constexpr int drives = drives_, threads = threads_, at_once = at_once_, arriving = arriving_;
  static constexpr Sending sending = sending_;
  static constexpr bool resident = resident_, has_peers = has_peers_, has_copies = has_copies_, skips = skips_;
  static constexpr bool has_own = sending == Sending::own || sending == Sending::own_and_later;
  static constexpr bool has_later = sending == Sending::own_and_later || sending == Sending::later;
  static constexpr bool keeps_rows = resident && at_once <= threads;  // the connections of this many neurons fit
};

// The neurons of a block that have fired, counted from the first of a turn. The list of one turn is read while the next
// turn runs. A third counter is cleared at the same time.
template <class Plan> struct Shared {
  Spike rows[Plan::keeps_rows ? Plan::at_once : 1];
  unsigned short fired[Plan::resident ? 1 : 2][Plan::at_once];
  int found[3];
  int received[Plan::has_peers ? most_peers : 1];  // from each rank
};

// The connections of a spike that are sent: all, those of delay 1, or the others.
enum class Part { all, next_step, after_next };

// If `marked` is not 0, connections lead to this many inputs, and the sender marks their targets in net.until.
template <class Matrix, bool has_copies = false, int marked = 0> struct Sender {
  using F = typename Matrix::Compute;
  static constexpr int unroll = 4;

  const Arguments& net;
  F shared = 1;  // the homogeneous weight
  int same_delay = 1;

  __device__ __forceinline__ explicit Sender(const Arguments& net) : net(net) {
    if (Matrix::homogeneous && net.matrix.nnz > 0) shared = Matrix::weight(net.matrix, 0);
    if (Matrix::delays == event::Delays::one && net.matrix.nnz > 0)
      same_delay = net.matrix.delay_bytes == 1 ? *static_cast<const unsigned char*>(net.matrix.delays)
                                               : *static_cast<const int*>(net.matrix.delays);
  }

  __device__ __forceinline__ Spike row_of(Int neuron) const {
    if (net.matrix.nnz == 0) return {};
    const Int copy = has_copies ? copy_of(net, neuron) : 0, row = neuron - copy * net.copy_size;
    const Int first = Matrix::begin(net.matrix, row);
    const int count = static_cast<int>(Matrix::begin(net.matrix, row + 1) - first);
    return {copy << copy_shift | first, count, net.near != nullptr ? net.near[row] : 0};
  }

  // Sends every `stride`-th connection from `lane` on, for a spike in the step with slot `now`. Loads are in flight
  // together.
  template <Part part>
  __device__ __forceinline__ void send(const Spike& spike, int lane, int stride, int now, int last_arrival = 0) const {
    F* ring = static_cast<F*>(net.ring);
    int* until = net.until;
    Int first = spike.first;
    if constexpr (has_copies) {
      ring += (first >> copy_shift) * net.copy_columns;
      if (marked > 0) until += (first >> copy_shift) * net.copy_size;
      first &= (Int{1} << copy_shift) - 1;
    }
    const int slots = static_cast<int>(net.slots);
    const int end = part == Part::next_step ? spike.near : spike.count;
    for (int i = lane + (part == Part::after_next ? spike.near : 0); i < end; i += unroll * stride) {
      int column[unroll], late[unroll];
      F weight[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        const bool is_there = i + u * stride < end;
        const Int k = first + i + u * stride;
        column[u] = is_there ? __ldcs(net.matrix.indices + k) : -1;
        weight[u] = Matrix::homogeneous ? shared : is_there ? Matrix::weight(net.matrix, k) : F(0);
        if constexpr (part == Part::next_step)
          late[u] = 1;
        else if constexpr (Matrix::delays == event::Delays::one)
          late[u] = same_delay;
        else
          late[u] = is_there ? event::Ring<Matrix>::delay_of(net.matrix, k) : 0;
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        if (column[u] < 0) break;
        const int slot = now + late[u];
        event::add_to(ring + (slot < slots ? slot : slot - slots) * net.columns + column[u], weight[u]);
        if (marked > 0)
          atomicMax(until + (marked == 1 ? column[u] : column[u] % static_cast<int>(net.copy_size)), last_arrival);
      }
    }
  }

  // Sends the listed spikes of a step, in pieces that are divided among `warps` warps, of which this is number `warp`.
  template <Part part> __device__ __forceinline__ void send_listed(int list, int now, Int warp, Int warps) const {
    const Spike* const spikes = net.lists + list * net.size;
    const int pieces = static_cast<int>(net.pieces);
    // The first spike is loaded before its existence is known.
    Spike spike = load(spikes + at_most(warp / pieces, net.size - 1));
    const Int tasks = static_cast<Int>(__ldcg(net.counts + list)) * pieces;
    for (Int task = warp; task < tasks; task += warps) {
      if (task != warp) spike = load(spikes + task / pieces);
      send<part>(spike, static_cast<int>(task % pieces) * 32 + (threadIdx.x & 31), pieces * 32, now);
    }
  }

  // Sends the spikes that a block found, by `warps` warps, of which this is one. row(i) returns the connections of
  // spike i.
  template <Part part, class Row>
  __device__ __forceinline__ void send_own(int found, const Row& row, int now, int warp, int warps) const {
    if (found == 0) return;
    const int of_a_row = found < warps ? warps / found : 1, rows_at_once = warps / of_a_row;
    if (warp >= rows_at_once * of_a_row) return;
    for (int i = warp / of_a_row; i < found; i += rows_at_once)
      send<part>(row(i), warp % of_a_row * 32 + (threadIdx.x & 31), of_a_row * 32, now);
  }

  static __device__ __forceinline__ Spike load(const Spike* at) {
    const int4 words = __ldcg(reinterpret_cast<const int4*>(at));
    Spike spike;
    spike.first = static_cast<Int>(static_cast<unsigned long long>(static_cast<unsigned>(words.y)) << 32 |
                                   static_cast<unsigned>(words.x));
    spike.count = words.z;
    spike.near = words.w;
    return spike;
  }
};

// Spikes that this rank writes to the memory of all GPUs, and those that the others wrote to its own. Another rank may
// be a step ahead, but no more, since it waits for this one.
template <class Plan> class PeerSpikes {
 public:
  __device__ __forceinline__ explicit PeerSpikes(const Peers& peers)
      : peers_(peers), first_(Plan::has_peers ? *peers.exchanges : 0) {}

  // Writes spike number `at` of step t to all GPUs.
  __device__ __forceinline__ void publish(int t, int at, int neuron) const {
    for (Int rank = 0; rank < peers_.ranks; ++rank) neurons(rank, t, peers_.rank)[at] = neuron;
    __threadfence_system();
  }

  // Sends the spikes of a step that all blocks have published, by warp `mine`. Called by all threads.
  template <class Sender>
  __device__ __forceinline__ void send(const Sender& sender, int t, int mine, int* received, int now, Int warp,
                                       Int warps) const {
    const Int rank = threadIdx.x;
    const bool is_other = rank < peers_.ranks && rank != peers_.rank;
    if (is_other && blockIdx.x == 0)
      asm volatile("st.release.sys.u64 [%0], %1;"
                   :
                   : "l"(counts(rank, t) + peers_.rank), "l"(mark_of(t) | mine)
                   : "memory");
    Int task = warp;
    send_list(sender, peers_.rank, t, mine, now, task, warps);
    if (is_other) received[rank] = wait_for(rank, t);
    __syncthreads();
    for (Int other = 0; other < peers_.ranks; ++other)
      if (other != peers_.rank) send_list(sender, other, t, received[other], now, task, warps);
  }

 private:
  // The mark of a step in the upper half of its count.
  __device__ __forceinline__ unsigned long long mark_of(int t) const {
    return static_cast<unsigned long long>(first_ + t + 1) << 32;
  }
  __device__ __forceinline__ int turn(int t) const { return static_cast<int>((first_ + t) & 1); }
  __device__ __forceinline__ unsigned long long* counts(Int rank, int t) const {
    return reinterpret_cast<unsigned long long*>(peers_.memory[rank]) + turn(t) * peers_.ranks;
  }
  // The spikes that `by` wrote to the memory of `rank`.
  __device__ __forceinline__ int* neurons(Int rank, int t, Int by) const {
    return reinterpret_cast<int*>(peers_.memory[rank] + 2 * peers_.ranks * sizeof(unsigned long long)) +
           (turn(t) * peers_.ranks + by) * peers_.room;
  }

  __device__ __noinline__ int wait_for(Int rank, int t) const {
    const unsigned long long* const count = counts(peers_.rank, t) + rank;
    const unsigned long long begun = nanoseconds();
    for (;;) {
      unsigned long long word;
      asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(word) : "l"(count) : "memory");
      if ((word ^ mark_of(t)) >> 32 == 0) return static_cast<int>(word);
      if (*static_cast<volatile int*>(peers_.missing) != 0) return 0;
      if (nanoseconds() - begun > peers_.wait) atomicCAS(peers_.missing, 0, static_cast<int>(rank) + 1);
    }
  }
  static __device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }

  // Called by warps, with a row in pieces, the first by warp number `task`.
  template <class Sender>
  __device__ __forceinline__ void send_list(const Sender& sender, Int rank, int t, int received, int now, Int& task,
                                            Int warps) const {
    const int* const list = neurons(peers_.rank, t, rank);
    const int pieces = static_cast<int>(sender.net.pieces);
    const Int tasks = static_cast<Int>(received) * pieces;
    for (; task < tasks; task += warps) {
      const Spike spike = sender.row_of(sender.net.size + __ldcg(list + task / pieces));
      sender.template send<Part::all>(spike, static_cast<int>(task % pieces) * 32 + (threadIdx.x & 31), pieces * 32,
                                      now);
    }
    task -= tasks;
  }

  const Peers& peers_;
  const Int first_;
};

// Records a spike for the caller and for other ranks.
__device__ __forceinline__ void record_spike(const Arguments& net, int t, Int neuron) {
  if (net.bits != nullptr) atomicOr(net.bits + t * ((net.size + 31) / 32) + neuron / 32, 1u << neuron % 32);
  if (net.received == nullptr) return;
  const unsigned at = atomicAdd(net.received, 1u);
  if (at < net.room) net.received[1 + at] = static_cast<unsigned>(t * net.size + neuron);
}

// The input of the caller of the steps.
template <class F> __device__ __forceinline__ F given_input(const Arguments& net, int t, Int column) {
  const int place = net.places[column];
  return place < 0 ? F(0) : static_cast<const F*>(net.input)[(net.input_row + t) * net.input_columns + place];
}

// The recorded states of a block's neurons.
template <class F> struct OwnProbes {
  Int first, last;

  // For neurons `begin` to `end` - 1.
  __device__ __forceinline__ OwnProbes(const Arguments& net, Int begin, Int end)
      : first(first_from(net, begin)), last(first_from(net, end)) {}

  __device__ __forceinline__ void record(const Arguments& net, int t, Int threads = blockDim.x) const {
    for (Int i = first + threadIdx.x; i < last; i += threads) {
      const Probe& probe = net.probes[i];
      static_cast<F*>(probe.to)[(net.probe_row + t) * probe.stride] = *static_cast<const F*>(probe.from);
    }
  }

 private:
  static __device__ __forceinline__ Int first_from(const Arguments& net, Int neuron) {
    Int low = 0, high = net.probe_count;
    while (low < high) {
      const Int middle = (low + high) / 2;
      if (net.probes[middle].neuron < neuron)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
};

template <class Spec, class Plan> struct GroupSteps : MultistepNeurons<Spec> {
  using Base = MultistepNeurons<Spec>;
  using Base::I, Base::O, Base::S, Base::W;
  using typename Base::Cell, typename Base::Cells, typename Base::F, typename Base::Neurons;
  using Group = GroupArguments<Cell>;  // followed by draws if the cell draws
  using Matrix = typename Plan::Matrix;
  using Sender = network::Sender<Matrix, Plan::has_copies, Plan::skips ? Plan::arriving : 0>;
  static constexpr int D = Plan::drives;
  // Currents stay in registers, unless these are needed for the neurons of a resident block.
  static constexpr bool keeps_currents = !Plan::resident || W <= 2;

  // Elements begin, ..., end - 1 of the group, which are in the same copy. Element e is neuron group.begin + offset +
  // e, and the column of its first input is that index plus `shift`.
  struct Chunk {
    Int begin, end;
    int copy, offset, shift;

    __device__ __forceinline__ Chunk(const Arguments& net, const Group& group, Int number)
        : copy(0), offset(0), shift(0) {
      Int first = 0, neurons = group.neurons;
      if constexpr (Plan::has_copies) {
        copy = static_cast<int>(number) / static_cast<int>(group.chunks);
        number -= copy * group.chunks;
        neurons = neurons_of_copy(net, group);
        first = copy * neurons;
        offset = copy * static_cast<int>(net.copy_size - neurons);
        shift = copy * static_cast<int>(net.copy_columns - net.copy_size);
      }
      begin = first + at_most(number * group.share, neurons);
      end = first + at_most((number + 1) * group.share, neurons);
    }
    __device__ __forceinline__ Int first_neuron(const Group& group) const { return group.begin + offset + begin; }
  };
  static __device__ __forceinline__ int neurons_of_copy(const Arguments& net, const Group& group) {
    return static_cast<int>(group.neurons) / copies(net);
  }
  static __device__ __forceinline__ int copies(const Arguments& net) {
    return static_cast<int>(net.size) / static_cast<int>(net.copy_size);
  }

  // Calls f for each chunk of a block of the group. Without copies, a block has one.
  template <class Visit>
  static __device__ __forceinline__ void for_each_chunk(const Arguments& net, const Group& group, Int block,
                                                        const Visit& f) {
    if constexpr (Plan::has_copies) {
      for (Int number = block; number < group.chunks * copies(net); number += group.blocks)
        f(Chunk(net, group, number));
    } else {
      f(Chunk(net, group, block));
    }
  }

  // The external input of a neuron in a step.
  struct Driven {
    F by[room(D)][I];

    __device__ __forceinline__ Driven() : by{} {}

    __device__ __forceinline__ void draw(const Arguments& net, Int neuron, DoubleWord step) {
      const Int copy = Plan::has_copies ? copy_of(net, neuron) : 0, place = neuron - copy * net.copy_size;
#pragma unroll
      for (int d = 0; d < D; ++d)
#pragma unroll
        for (int c = 0; c < I; ++c) {
          const Drive& drive = net.drives[d];
          const Int of_copy = c * net.copy_size + place, column = copy * net.copy_columns + of_copy;
          const Int index = net.numbers == nullptr ? of_copy : c * net.whole + net.numbers[neuron];
          const DoubleWord key = Plan::has_copies ? drive.keys[copy] : drive.key;
          const int table = drive.tables[column];
          by[d][c] = 0;
          if (table == not_driven) continue;
          by[d][c] = static_cast<const F*>(drive.weights)[column] *
                     static_cast<F>(number(drive, key, column, index, step, table));
        }
    }

   private:
    // Equals poisson(rate) of neuron text, with draws 0 and 1, for the neuron with this index.
    static __device__ __forceinline__ double number(const Drive& drive, DoubleWord key, Int column, Int index,
                                                    DoubleWord step, int table) {
      const auto word = [&](unsigned draw) {
        return chosen(words_of(key, static_cast<DoubleWord>(index) / 4, step, false, draw, 0),
                      static_cast<Word>(index % 4));
      };
      const Word high = word(0);
      if (table != no_table) {
        const unsigned* threshold = drive.thresholds + table;
        int k = 0;
        while (high > *threshold) {  // the last threshold is above all draws
          ++threshold;
          ++k;
        }
        if (high != *threshold) return k;
      }
      return by_all_bits(drive, column, DoubleWord{high} << 32 | word(1));
    }

    static __device__ __noinline__ double by_all_bits(const Drive& drive, Int column, DoubleWord bits) {
      const double rate = static_cast<double>(static_cast<const F*>(drive.rates)[column]);
      return rate < least_of_rejection ? inverted_poisson_of(uniform_of(bits), rate, drive.none[column])
                                       : large_poisson_of(bits, rate);
    }
  };

  // A thread's neurons in a turn of the block, from element `base` of a chunk on. Threads without neurons also run,
  // because all must arrive at a barrier; they read the neurons of other threads.
  struct Turn {
    const Int base, end;
    const int offset, shift;  // as in Chunk
    const Group& group;
    const Neurons n;
    const Cells cells;
    F state[W][room(S)];
    Driven driven[W];
    // These values are constant during a launch: the currents, and masks with one bit per neuron, of neurons to which
    // the caller passes input and of silenced neurons. (One word for both masks makes a step of the microcircuit 25 %
    // slower on an H200.)
    F current[keeps_currents ? W : 1][I];
    unsigned given = 0, silenced = 0;

    __device__ __forceinline__ Turn(const Arguments& net, const Group& group, const Chunk& chunk, Int base)
        : Turn(net, group, chunk, base, neurons(group, base)) {}
    __device__ __forceinline__ Turn(const Arguments& net, const Group& group, const Chunk& chunk, Int base,
                                    const Neurons& n)
        : base(base),
          end(chunk.end),
          offset(chunk.offset),
          shift(chunk.shift),
          group(group),
          n(n),
          cells(cells_of(net, group, chunk, n)) {
      Base::load_initial(group, cells, n, state);
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int c = 0; c < I && keeps_currents; ++c)
          current[k][c] = net.current != nullptr ? static_cast<const F*>(net.current)[column(net, k, c)] : F(0);
      if (net.silenced != nullptr) {
#pragma unroll
        for (int k = 0; k < W; ++k) silenced |= (net.silenced[neuron(k)] != 0 ? 1u : 0u) << k;
      }
      if (net.input != nullptr) {  // all loads are in flight together
        int place[W][I];
#pragma unroll
        for (int k = 0; k < W; ++k)
#pragma unroll
          for (int c = 0; c < I; ++c) place[k][c] = net.places[column(net, k, c)];
#pragma unroll
        for (int k = 0; k < W; ++k)
#pragma unroll
          for (int c = 0; c < I; ++c) given |= (place[k][c] >= 0 ? 1u : 0u) << k;
      }
    }

    __device__ __forceinline__ bool has(int k) const { return n.own(k) && n.neuron(k) < end; }
    __device__ __forceinline__ Int neuron(int k) const { return group.begin + offset + n.neuron(k); }
    __device__ __forceinline__ Int column(const Arguments& net, int k, int c) const {
      return c * net.copy_size + shift + neuron(k);
    }
    __device__ __forceinline__ bool is_given(int k) const { return (given >> k & 1) != 0; }
    __device__ __forceinline__ bool is_silenced(int k) const { return (silenced >> k & 1) != 0; }

    __device__ __forceinline__ void draw(const Arguments& net, DoubleWord step) {
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (has(k)) driven[k].draw(net, neuron(k), step);
    }

    __device__ __forceinline__ void store() const {
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int s = 0; s < S; ++s)
          if (has(k)) static_cast<F*>(group.states[s])[n.neuron(k)] = state[k][s];
    }

   private:
    static __device__ __forceinline__ Neurons neurons(const Group& group, Int base) {
      if constexpr (W == 1) {
        const Int start = base + threadIdx.x;
        return {at_most(start, group.neurons - 1), start};
      } else {
        const Int start = base + threadIdx.x / 32 * Neurons::span;
        return {at_most(start, group.neurons - Neurons::span) + (threadIdx.x & 31), start};
      }
    }

    // A copy has its own seed, and draws the numbers of the same neuron in copy 0.
    static __device__ __forceinline__ Cells cells_of(const Arguments& net, const Group& group, const Chunk& chunk,
                                                     const Neurons& n) {
      if constexpr (Plan::has_copies && DrawsOf<Cell>::any) {
        typename GroupOf<Cell>::type own = static_cast<const typename GroupOf<Cell>::type&>(group);
        own.draws.seed += chunk.copy;
        own.draws.first -= static_cast<Int>(chunk.copy) * neurons_of_copy(net, group);
        return Cells(static_cast<const Group&>(own), n);
      } else {
        return Cells(group, n);
      }
    }
  };

  // A thread's part of the loop over time.
  struct Walk {
    const Arguments& net;
    const Group& group;
    Shared<Plan>& shared;
    const Sender& sender;
    const PeerSpikes<Plan> peers;
    int now;       // the slot that arrives
    int turn = 0;  // the number of turns so far

    // Loads the sums that arrive.
    __device__ __forceinline__ void load(const Turn& own, F (&x)[W][I]) const {
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int c = 0; c < I; ++c)
          if (own.has(k)) x[k][c] = __ldcg(slot(own, k) + c * net.copy_size);
    }

    __device__ __forceinline__ void step(int t, Turn& own, F (&x)[W][I]) const {
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (own.has(k)) step(t, own, k, x[k]);
    }

    // Sends the connections of the neurons that fired, without a grid barrier.
    __device__ __forceinline__ void send_own(const Turn& own, int own_threads) {
      if constexpr (Plan::has_own) {
        constexpr Part part = Plan::sending == Sending::own ? Part::all : Part::next_step;
        if (threadIdx.x == 0) shared.found[(turn + 1) % 3] = 0;
        asm volatile("bar.sync 1, %0;" ::"r"(own_threads) : "memory");
        const unsigned short* const who = fired();
        sender.template send_own<part>(
            shared.found[turn % 3], [&](int i) { return row_of(own, who[i]); }, now, threadIdx.x / 32,
            own_threads / 32);
        ++turn;
      }
    }

    __device__ __forceinline__ void keep_rows(const Turn& own) const {
      if constexpr (Plan::keeps_rows) {
#pragma unroll
        for (int k = 0; k < W; ++k)
          if (own.has(k)) shared.rows[own.n.neuron(k) - own.base] = sender.row_of(own.neuron(k));
      }
    }

   private:
    __device__ __forceinline__ F* slot(const Turn& own, int k) const {
      return static_cast<F*>(net.ring) + now * net.columns + own.shift + own.neuron(k);
    }

    __device__ __forceinline__ void step(int t, Turn& own, int k, F (&x)[I]) const {
      const Int neuron = own.neuron(k);
      F y[O];
#pragma unroll
      for (int c = 0; c < I; ++c) {
        slot(own, k)[c * net.copy_size] = 0;
        const Int column = c * net.copy_size + own.shift + neuron;
        if constexpr (keeps_currents)
          x[c] += own.current[k][c];
        else if (net.current != nullptr)
          x[c] += static_cast<const F*>(net.current)[column];
        if (own.is_given(k)) x[c] += given_input<F>(net, t, column);
#pragma unroll
        for (int d = 0; d < D; ++d) x[c] += own.driven[k].by[d][c];
      }
      own.cells.step(k, t, x, own.state[k], y);
      if (own.is_silenced(k) && y[0] > 0) y[0] = 0;
      const bool fires = y[0] > 0;
      if (net.fired != nullptr) net.fired[t * net.size + neuron] = fires;
      if (t == net.steps - 1) static_cast<F*>(net.spikes)[neuron] = y[0];
      if (fires) publish(t, own, static_cast<int>(own.n.neuron(k) - own.base));
    }

    // Publishes the spike of neuron `i` of the turn.
    __device__ __forceinline__ void publish(int t, const Turn& own, int i) const {
      const Int neuron = group.begin + own.offset + own.base + i;
      if constexpr (Plan::has_own) fired()[atomicAdd(&shared.found[turn % 3], 1)] = static_cast<unsigned short>(i);
      if constexpr (Plan::sending != Sending::own) {
        const int list = t % 3, at = atomicAdd(net.counts + list, 1);
        if (!Plan::has_peers || net.peers.has_own != 0) net.lists[list * net.size + at] = row_of(own, i);
        if constexpr (Plan::has_peers)
          peers.publish(t, at, net.numbers != nullptr ? net.numbers[neuron] : static_cast<int>(neuron));
      }
      record_spike(net, t, neuron);
    }

    __device__ __forceinline__ Spike row_of(const Turn& own, int i) const {
      if constexpr (Plan::keeps_rows)
        return shared.rows[i];
      else
        return sender.row_of(group.begin + own.offset + own.base + i);
    }

    __device__ __forceinline__ unsigned short* fired() const { return shared.fired[Plan::resident ? 0 : turn % 2]; }
  };

  // A block's neurons, one chunk, which stay in registers from the first step to the last.
  struct Resident {
    Walk& walk;
    Turn own;
    const OwnProbes<F> probes;
    const DoubleWord first_step;

    __device__ __forceinline__ Resident(Walk& walk, Int block, DoubleWord first_step)
        : Resident(walk, Chunk(walk.net, walk.group, block), first_step) {}
    __device__ __forceinline__ Resident(Walk& walk, const Chunk& chunk, DoubleWord first_step)
        : walk(walk),
          own(walk.net, walk.group, chunk, chunk.begin),
          probes(walk.net, chunk.first_neuron(walk.group), chunk.first_neuron(walk.group) + chunk.end - chunk.begin),
          first_step(first_step) {
      walk.keep_rows(own);
      own.draw(walk.net, first_step);
    }
    __device__ __forceinline__ void step(int t, int own_threads) {
      F x[W][I];
      walk.load(own, x);
      walk.step(t, own, x);
      if (walk.net.probe_count > 0) own.store();
      walk.send_own(own, own_threads);
    }
    __device__ __forceinline__ void record(int t) const { probes.record(walk.net, t); }
    __device__ __forceinline__ void prepare(int t) { own.draw(walk.net, first_step + t); }
    __device__ __forceinline__ void end() const { own.store(); }
  };

  // The neurons of a block with more neurons than fit in the registers of its threads, which process them in a loop, or
  // with more than one chunk.
  struct InTurns {
    Walk& walk;
    const Int block;
    const DoubleWord first_step;

    __device__ __forceinline__ InTurns(Walk& walk, Int block, DoubleWord first_step)
        : walk(walk), block(block), first_step(first_step) {}
    __device__ __forceinline__ void step(int t, int own_threads) {
      for_each_chunk(walk.net, walk.group, block, [&](const Chunk& chunk) {
        for (Int base = chunk.begin; base < chunk.end; base += own_threads * W) {
          Turn own(walk.net, walk.group, chunk, base);
          F x[W][I];
          walk.load(own, x);
          own.draw(walk.net, first_step + t);
          walk.step(t, own, x);
          own.store();
          walk.send_own(own, own_threads);
        }
      });
    }
    __device__ __forceinline__ void record(int t) const {
      if (walk.net.probe_count == 0) return;
      for_each_chunk(walk.net, walk.group, block, [&](const Chunk& chunk) {
        const Int first = chunk.first_neuron(walk.group);
        OwnProbes<F>(walk.net, first, first + chunk.end - chunk.begin).record(walk.net, t);
      });
    }
    __device__ __forceinline__ void prepare(int) const {}
    __device__ __forceinline__ void end() const {}
  };
  using Owned = typename event::Choose<Plan::resident, Resident, InTurns>::type;

  static __device__ __forceinline__ void run(const Arguments& net, const Group& group, Shared<Plan>& shared) {
    const DoubleWord first_step = *net.step;
    const int slots = static_cast<int>(net.slots), steps = static_cast<int>(net.steps);
    const int own_threads = static_cast<int>(net.own_threads);
    const bool is_owner = static_cast<int>(threadIdx.x) < own_threads;
    const Sender sender(net);
    GridBarrier barrier;
    if (threadIdx.x < 3) shared.found[threadIdx.x] = 0;
    __syncthreads();

    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, own_warps = own_threads / 32;
    const bool all_send_later = own_warps == warps;
    const int later_warps = all_send_later ? warps : warps - own_warps;
    const Int later_warp = static_cast<Int>(all_send_later ? warp : warp - own_warps) * gridDim.x + blockIdx.x;
    const auto send_later = [&](int list, int slot) {
      if (is_owner && !all_send_later) return;
      constexpr Part part = Plan::sending == Sending::own_and_later ? Part::after_next : Part::all;
      sender.template send_listed<part>(list, slot, later_warp, static_cast<Int>(later_warps) * gridDim.x);
    };

    const int first_slot = static_cast<int>(first_step % slots);
    Walk walk{net, group, shared, sender, PeerSpikes<Plan>(net.peers), first_slot};
    Owned owned(walk, blockIdx.x - group.first_block, first_step);
    int before = walk.now;
    for (int t = 0; t < steps; ++t) {
      if (t > 0) barrier.wait();
      if (Plan::sending != Sending::own && blockIdx.x == 0 && threadIdx.x == 0) net.counts[(t + 1) % 3] = 0;
      if (is_owner) owned.step(t, own_threads);
      if (Plan::has_later && t > 0) send_later((t - 1) % 3, before);
      if constexpr (Plan::sending == Sending::together) {
        barrier.arrive();
        barrier.wait();
        const Int own_warp = static_cast<Int>(warp) * gridDim.x + blockIdx.x;
        const Int all_warps = static_cast<Int>(warps) * gridDim.x;
        if (!Plan::has_peers || net.peers.has_own != 0)
          sender.template send_listed<Part::all>(t % 3, walk.now, own_warp, all_warps);
        if constexpr (Plan::has_peers)
          walk.peers.send(sender, t, __ldcg(net.counts + t % 3), shared.received, walk.now, own_warp, all_warps);
      }
      barrier.arrive();
      owned.record(t);
      if (t + 1 < steps) owned.prepare(t + 1);
      before = walk.now;
      walk.now = walk.now + 1 == slots ? 0 : walk.now + 1;
    }
    barrier.wait();
    if (Plan::has_later) send_later((steps - 1) % 3, before);
    owned.end();
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    *net.step = static_cast<Int>(first_step) + steps;
    if (Plan::has_peers) *net.peers.exchanges += steps;
  }
};

}  // namespace network
}  // namespace spikeforge
