// Steps of a network in rounds: if no delay is short, blocks run the steps of a round without waiting for each other,
// and one grid barrier ends the round. Otherwise as network.cuh.
//
// The spikes of a round are listed, and all blocks send them while they run the next round. Rounds have R steps. A
// spike of step t in round r, r R <= t < (r + 1) R, with delay d:
//   - is visible after the barrier that ends round r + 1, and arrives at t + d >= r R + d. So 2 R must be at most the
//     least delay.
//   - is added to the slot of t + d while other blocks may run any step of round r + 1, and have completed round r. The
//     slot was cleared before if step t + d - slots is in round r or earlier, for the latest t = (r + 1) R - 1. So the
//     number of slots must be at least the largest delay.
//
// All sums of a round are complete when it begins, so that a thread loads them before the steps that need them.
//
// If blocks have more neurons than their threads hold, a kernel may skip neurons that rest (Awake). A neuron rests if
// nothing arrived in the last step of a round, it did not fire, and the bits of its states did not change.
#pragma once

#include "cuda/network/network.cuh"

namespace spikeforge {
namespace network {

// The input of a round by drives and by the caller, for the neurons of a resident block that have one: as many steps as
// fit, from the first on. Threads draw and load it while they wait for the other blocks.
template <class Plan> struct RoundsShared {
  using F = typename Plan::Matrix::Compute;
  static constexpr bool draws = Plan::resident;
  static constexpr int most_drawn = draws ? 12288 / static_cast<int>(sizeof(F)) : 1;
  static constexpr int listed = 160;  // neurons of a warp's list in GroupRounds::Awake

  Spike rows[Plan::keeps_rows ? Plan::at_once : 1];
  F drawn[most_drawn];                            // [steps, drives and the caller, inputs, neurons]
  unsigned short driven[draws ? most_drawn : 1];  // neurons, counted from the first of the block
  int found;                                      // their number
  int awake[Plan::skips ? Plan::threads / 32 : 1][listed];
};

__device__ __forceinline__ bool same_bits(float a, float b) { return __float_as_uint(a) == __float_as_uint(b); }
__device__ __forceinline__ bool same_bits(double a, double b) {
  return __double_as_longlong(a) == __double_as_longlong(b);
}

template <class Spec, class Plan> struct GroupRounds : GroupSteps<Spec, Plan> {
  using Steps = GroupSteps<Spec, Plan>;
  using Steps::I, Steps::O, Steps::S, Steps::W, Steps::D;
  using typename Steps::Chunk, typename Steps::Driven, typename Steps::F, typename Steps::Group, typename Steps::Sender;
  static constexpr int A = Plan::arriving < I ? Plan::arriving : I;  // inputs with connections
  // Steps between the load of sums and their use. (1 to 8 take the same time on an H200.)
  static constexpr int ahead = 2;

  struct Round {
    int number, first, last;  // steps first, ..., last - 1 of the launch
    int slot;                 // of the first
  };

  // A thread's neurons (GroupSteps), and bits of those that it owns, and of those with a drive or input of the caller.
  struct Turn : Steps::Turn {
    const Int first, column;  // the index of neuron 0 in the network, and the column of its first input
    const OwnProbes<F> probes;
    unsigned owned = 0, driven = 0;
    int drawn_at = 0;    // the index of its first driven neuron in RoundsShared::driven
    bool rests = false;  // the last step of the round did not change the neuron

    // Has consecutive neurons from element `base` on, or the given ones.
    template <class... Element>
    __device__ __forceinline__ Turn(const Arguments& net, const Group& group, const Chunk& chunk, Int base,
                                    const Element&... element)
        : Steps::Turn(net, group, chunk, base, element...),
          first(group.begin + chunk.offset + this->n.first),
          column(first + chunk.shift),
          probes(net, group.begin + chunk.offset + base,
                 group.begin + chunk.offset + at_most(base + net.own_threads * W, chunk.end)) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        if (!this->has(k)) continue;
        owned |= 1u << k;
        if (this->is_given(k) || is_driven(net, column + distance(k))) driven |= 1u << k;
      }
    }

   private:
    static __device__ __forceinline__ bool is_driven(const Arguments& net, Int column) {
      bool is = false;
#pragma unroll
      for (int d = 0; d < D; ++d)
#pragma unroll
        for (int c = 0; c < I; ++c) is = is || net.drives[d].tables[c * net.copy_size + column] != not_driven;
      return is;
    }
  };

  // The distance of a thread's neuron k from its neuron 0.
  static __device__ constexpr int distance(int k) { return k * Steps::Neurons::stride; }

  // A spike that has a place in the list, but is not yet stored there: the place comes from an atomic, which takes
  // longer than a step.
  struct Unlisted {
    int place = -1;
    int neuron, slot;
  };

  // The position of a thread in a round: its next step, the slots of that step and of the next load, and sums that were
  // loaded for the next steps.
  struct Progress {
    int t, slot, loaded;
    F arriving[ahead][W][room(A)];
    Unlisted unlisted;
  };

  // A thread's part of a round.
  struct Walk {
    const Arguments& net;
    const Group& group;
    RoundsShared<Plan>& shared;
    const Sender& sender;
    const DoubleWord first_step;
    const int last_step, own_threads;
    const int begin, shift;  // the first neuron of a resident block, and Chunk::shift
    int drawn_steps = 0;     // of a round, RoundsShared

    // A step of the launch, counted from *net.until_base.
    __device__ __forceinline__ int since_base(int step) const {
      return Plan::skips ? static_cast<int>(first_step - *net.until_base) + step : 0;
    }

    __device__ __forceinline__ void run(const Round& round, Turn& own) const {
      Progress at{round.first, round.slot, round.slot};
#pragma unroll
      for (int u = 0; u < ahead; ++u)
        if (round.first + u < round.last) load(own, at, u);
      const bool is_plain = own.owned == (1u << W) - 1 && net.current == nullptr && own.silenced == 0 &&
                            net.fired == nullptr && own.probes.first >= own.probes.last;
      if (is_plain) run<true>(round, round.last <= last_step ? round.last : last_step, own, at);
      run<false>(round, round.last, own, at);
      list(round, at.unlisted);
    }

    // Lists the driven neurons of a resident block. Called by all threads.
    __device__ __forceinline__ void find_driven(bool is_owner, Turn& own) {
      if constexpr (RoundsShared<Plan>::draws) {
        if (threadIdx.x == 0) shared.found = 0;
        __syncthreads();
        if (is_owner && own.driven != 0) {
          own.drawn_at = atomicAdd(&shared.found, __popc(own.driven));
          int at = own.drawn_at;
#pragma unroll
          for (int k = 0; k < W; ++k)
            if ((own.driven >> k & 1) && at < shared.most_drawn)
              shared.driven[at++] = static_cast<unsigned short>(own.neuron(k) - begin);
        }
        __syncthreads();
        const int at_once = static_cast<int>(net.round), of_a_step = shared.found * externals() * I;
        if (of_a_step > 0)
          drawn_steps = of_a_step * at_once <= shared.most_drawn ? at_once : shared.most_drawn / of_a_step;
      }
    }

    // Draws the input of the round that begins at step `first`. Called by all threads.
    __device__ __forceinline__ void draw(int first) const {
      if constexpr (RoundsShared<Plan>::draws) {
        const int neurons = shared.found;
        for (int i = threadIdx.x; i < drawn_steps * neurons; i += blockDim.x) {
          const int step = i / neurons, at = i - step * neurons;
          Driven input;
          input.draw(net, begin + shared.driven[at], first_step + first + step);
#pragma unroll
          for (int d = 0; d < D; ++d)
#pragma unroll
            for (int c = 0; c < I; ++c) drawn(step, d, c, at) = input.by[d][c];
          if (net.input == nullptr || first + step > last_step) continue;
          const Int column = begin + shared.driven[at] + shift;
#pragma unroll
          for (int c = 0; c < I; ++c)
            drawn(step, D, c, at) = given_input<F>(net, first + step, c * net.copy_size + column);
        }
      }
    }

    __device__ __forceinline__ void keep_rows(const Turn& own) const {
      if constexpr (Plan::keeps_rows) {
#pragma unroll
        for (int k = 0; k < W; ++k)
          if (own.owned >> k & 1) shared.rows[own.neuron(k) - begin] = sender.row_of(own.first + distance(k));
      }
    }

    // Prefetches the states and sums of an element of a chunk.
    __device__ __forceinline__ void prefetch(const Round& round, const Chunk& chunk, Int element) const {
      const auto fetch = [](const F* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); };
#pragma unroll
      for (int i = 0; i < S; ++i) fetch(static_cast<const F*>(group.states[i]) + element);
      const F* const sums = static_cast<const F*>(net.ring) + group.begin + chunk.offset + chunk.shift + element;
      int slot = round.slot;
      for (int t = round.first; t < round.last; ++t, slot = next(slot))
#pragma unroll
        for (int c = 0; c < A; ++c) fetch(sums + start_of(slot) + c * net.copy_size);
    }

   private:
    // The number of drives, and one more if the caller passes input.
    __device__ __forceinline__ int externals() const { return D + (net.input != nullptr ? 1 : 0); }
    __device__ __forceinline__ typename RoundsShared<Plan>::F& drawn(int step, int external, int c, int at) const {
      return shared.drawn[((step * externals() + external) * I + c) * shared.found + at];
    }

    // The distance of a slot from the first; a product of 32-bit numbers takes fewer instructions.
    __device__ __forceinline__ unsigned long long start_of(int slot) const {
      return static_cast<unsigned long long>(static_cast<unsigned>(slot)) * static_cast<unsigned>(net.columns);
    }

    __device__ __forceinline__ int next(int slot) const {
      return slot + 1 == static_cast<int>(net.slots) ? 0 : slot + 1;
    }

    // Loads the sums of the next step that is not loaded.
    __device__ __forceinline__ void load(const Turn& own, Progress& at, int u) const {
      const F* const sums = static_cast<const F*>(net.ring) + start_of(at.loaded) + own.column;
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int c = 0; c < A; ++c) at.arriving[u][k][c] = __ldcg(sums + c * net.copy_size + distance(k));
      at.loaded = next(at.loaded);
    }

    // Runs steps at.t, ..., last - 1. A plain thread owns all of its neurons, which are neither recorded nor silenced
    // and have no current or input of the caller, and does not run the last step of the launch.
    template <bool is_plain>
    __device__ __forceinline__ void run(const Round& round, int last, Turn& own, Progress& at) const {
      while (at.t < last) {
        F x[W][I];
#pragma unroll
        for (int k = 0; k < W; ++k)
#pragma unroll
          for (int c = 0; c < I; ++c) x[k][c] = c < A ? at.arriving[0][k][c < A ? c : 0] : F(0);
#pragma unroll
        for (int u = 0; u + 1 < ahead; ++u)
#pragma unroll
          for (int k = 0; k < W; ++k)
#pragma unroll
            for (int c = 0; c < A; ++c) at.arriving[u][k][c] = at.arriving[u + 1][k][c];
        if (at.t + ahead < round.last) load(own, at, ahead - 1);
        step<is_plain>(round, own, x, at);
        at.slot = next(at.slot);
        ++at.t;
      }
    }

    // Runs all of the thread's neurons, so that their instructions are interleaved, and discards the results of those
    // that it does not own.
    template <bool is_plain>
    __device__ __forceinline__ void step(const Round& round, Turn& own, F (&x)[W][I], Progress& at) const {
      const unsigned owned = is_plain ? (1u << W) - 1 : own.owned;
      bool has_arrived = false;
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int c = 0; c < A; ++c) has_arrived = has_arrived || x[k][c] != 0;
      if (has_arrived) {
        F* const sums = static_cast<F*>(net.ring) + start_of(at.slot) + own.column;
#pragma unroll
        for (int k = 0; k < W; ++k)
#pragma unroll
          for (int c = 0; c < A; ++c)
            if (owned >> k & 1) sums[c * net.copy_size + distance(k)] = 0;
      }
      if (!is_plain && net.current != nullptr) {
#pragma unroll
        for (int k = 0; k < W; ++k)
#pragma unroll
          for (int c = 0; c < I; ++c)
            x[k][c] += static_cast<const F*>(net.current)[c * net.copy_size + own.column + distance(k)];
      }
      if (own.driven != 0) drive(own, at.t, at.t - round.first, x);
      F y[W][O], before[room(S)];
      bool any_fires = false;
#pragma unroll
      for (int i = 0; i < S && Plan::skips; ++i) before[i] = own.state[0][i];
#pragma unroll
      for (int k = 0; k < W; ++k) {
        own.cells.step(k, at.t, x[k], own.state[k], y[k]);
        if (!is_plain && own.is_silenced(k) && y[k][0] > 0) y[k][0] = 0;
        any_fires = any_fires || y[k][0] > 0;
      }
      if (!is_plain && net.fired != nullptr) {
#pragma unroll
        for (int k = 0; k < W; ++k)
          if (owned >> k & 1) net.fired[at.t * net.size + own.first + distance(k)] = y[k][0] > 0;
      }
      if (!is_plain && at.t == last_step) {
#pragma unroll
        for (int k = 0; k < W; ++k)
          if (owned >> k & 1) static_cast<F*>(net.spikes)[own.first + distance(k)] = y[k][0];
      }
      if (any_fires) {
        unsigned fires = 0;
#pragma unroll
        for (int k = 0; k < W; ++k)
          if (y[k][0] > 0) fires |= 1u << k;
        publish(round, at.t, at.slot, own, fires & owned, at.unlisted);
      }
      if (!is_plain && own.probes.first < own.probes.last) record(at.t, own);
      if (Plan::skips && at.t + 1 == round.last) {
        own.rests = !has_arrived && own.driven == 0 && !(y[0][0] > 0);
#pragma unroll
        for (int i = 0; i < S; ++i) own.rests = own.rests && same_bits(before[i], own.state[0][i]);
        if (own.rests && own.has(0)) static_cast<F*>(net.spikes)[own.first] = y[0][0];
      }
    }

    // In a loop over the neurons with a drive or input of the caller, which may be few.
    __device__ __forceinline__ void drive(const Turn& own, int t, int since_first, F (&x)[W][I]) const {
      int at = own.drawn_at;
#pragma unroll 1
      for (unsigned driven = own.driven; driven != 0; driven &= driven - 1, ++at) {
        const int drawn = __ffs(static_cast<int>(driven)) - 1;
        Driven input;
        F given[I] = {};
        if (since_first < drawn_steps) {
#pragma unroll
          for (int c = 0; c < I; ++c) {
            if (net.input != nullptr) given[c] = this->drawn(since_first, D, c, at);
#pragma unroll
            for (int d = 0; d < D; ++d) input.by[d][c] = this->drawn(since_first, d, c, at);
          }
        } else {
          const Int column = own.column + distance(drawn);
#pragma unroll
          for (int c = 0; c < I; ++c)
            if (net.input != nullptr) given[c] = given_input<F>(net, t, c * net.copy_size + column);
          input.draw(net, own.first + distance(drawn), first_step + t);
        }
#pragma unroll
        for (int k = 0; k < W; ++k)
#pragma unroll
          for (int c = 0; c < I; ++c) {
            if (k != drawn) continue;
            x[k][c] += given[c];
#pragma unroll
            for (int d = 0; d < D; ++d) x[k][c] += input.by[d][c];
          }
      }
    }

    __device__ __forceinline__ void publish(const Round& round, int t, int slot, const Turn& own, unsigned fires,
                                            Unlisted& unlisted) const {
      for (; fires != 0; fires &= fires - 1) {
        const int k = __ffs(static_cast<int>(fires)) - 1;
        const int neuron = static_cast<int>(own.neuron(k));
        list(round, unlisted);
        unlisted = {next_place(net.counts + round.number % 3), neuron, slot};
        record_spike(net, t, own.first + distance(k));
      }
    }

    __device__ __forceinline__ void list(const Round& round, Unlisted& unlisted) const {
      if (unlisted.place < 0) return;
      Spike spike = row_of(unlisted.neuron);
      spike.near = unlisted.slot;
      list_of(net, round.number)[unlisted.place] = spike;
      unlisted.place = -1;
    }

    __device__ __forceinline__ Spike row_of(int neuron) const {
      if constexpr (Plan::keeps_rows)
        return shared.rows[neuron - begin];
      else
        return sender.row_of(neuron);
    }

    // atomicAdd(count, 1), of which the compiler would read the result at once.
    static __device__ __forceinline__ int next_place(int* count) {
      int place;
      asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;" : "=r"(place) : "l"(count) : "memory");
      return place;
    }

    // Records states from memory, where other threads read them too.
    __device__ __forceinline__ void record(int t, const Turn& own) const {
      own.store();
      wait_for_owners();
      own.probes.record(net, t, own_threads);
      wait_for_owners();
    }
    __device__ __forceinline__ void wait_for_owners() const {
      asm volatile("bar.sync 1, %0;" ::"r"(own_threads) : "memory");
    }
  };

  // The spikes of a round. There are two lists: one is written while the other is sent.
  static __device__ __forceinline__ Spike* list_of(const Arguments& net, int round) {
    return net.lists + round % 2 * (net.round * net.size);
  }

  // Sends the spikes of all blocks in a round, by `warps` warps, of which this is number `warp`. Few spikes are divided
  // into more pieces than rows of average length need, because a row may be long.
  static __device__ __forceinline__ void send_listed(const Sender& sender, int round, int last_arrival, Int warp,
                                                     Int warps) {
    const Arguments& net = sender.net;
    const Spike* const spikes = list_of(net, round);
    const int coarse = static_cast<int>(net.pieces), fine = coarse < 8 ? 8 : coarse;
    // The first spike is loaded before its existence is known.
    Spike spike = sender.load(spikes + at_most(warp / fine, net.round * net.size - 1));
    const Int count = __ldcg(net.counts + round % 3);
    const int pieces = count * fine <= warps ? fine : coarse;
    for (Int task = warp; task < count * pieces; task += warps) {
      if (pieces != fine || task != warp) spike = sender.load(spikes + task / pieces);
      sender.template send<Part::all>(spike, static_cast<int>(task % pieces) * 32 + (threadIdx.x & 31), pieces * 32,
                                      spike.near, last_arrival);
    }
  }

  // A block's neurons, one chunk, which stay in registers from the first round to the last.
  struct Resident {
    const Walk& walk;
    Turn own;

    __device__ __forceinline__ Resident(Walk& walk, const Chunk& chunk, bool is_owner)
        : walk(walk), own(walk.net, walk.group, chunk, chunk.begin) {
      if (is_owner) walk.keep_rows(own);
      walk.find_driven(is_owner, own);
    }
    __device__ __forceinline__ void run(const Round& round) { walk.run(round, own); }
    __device__ __forceinline__ void end() const { own.store(); }
  };

  // The neurons of a block with more neurons than fit in the registers of its threads, or with more than one chunk.
  // They are loaded once per round.
  struct InTurns {
    const Walk& walk;

    __device__ __forceinline__ InTurns(const Walk& walk, const Chunk&, bool) : walk(walk) {}
    __device__ __forceinline__ void run(const Round& round) const {
      const Int block = blockIdx.x - walk.group.first_block;
      Steps::for_each_chunk(walk.net, walk.group, block, [&](const Chunk& chunk) {
        for (Int base = chunk.begin; base < chunk.end; base += walk.own_threads * W) {
          Turn own(walk.net, walk.group, chunk, base);
#pragma unroll
          for (int k = 0; k < W; ++k)
            if (const Int next = own.n.neuron(k) + walk.own_threads * W; next < chunk.end)
              walk.prefetch(round, chunk, next);
          walk.run(round, own);
          own.store();
        }
      });
    }
    __device__ __forceinline__ void end() const {}
  };

  // The same, without the neurons that rest. `until` has the last step in which something may change a neuron, counted
  // from *until_base: the arrival of a spike, or the first step of a round if the last step before it has changed it.
  struct Awake {
    static constexpr int at_once = 4;  // reads of `until` in flight

    const Walk& walk;
    Int stepped = 0;  // by this thread: neurons, once per round

    __device__ __forceinline__ Awake(const Walk& walk, const Chunk&, bool) : walk(walk) {}

    __device__ __forceinline__ void run(const Round& round) {
      const Int block = blockIdx.x - walk.group.first_block;
      const int now = walk.since_base(round.first), next = now + round.last - round.first;
      Steps::for_each_chunk(walk.net, walk.group, block, [&](const Chunk& chunk) { run(round, chunk, now, next); });
    }
    __device__ __forceinline__ void end() const {
      atomicAdd(reinterpret_cast<unsigned long long*>(walk.net.stepped), static_cast<unsigned long long>(stepped));
    }

   private:
    // A warp lists the neurons of its part of the chunk that are awake, and steps 32 of them at once.
    __device__ __forceinline__ void run(const Round& round, const Chunk& chunk, int now, int next) {
      static_assert(W == 1);
      const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, warps = walk.own_threads / 32;
      const Int share = ((chunk.end - chunk.begin + warps - 1) / warps + 31) / 32 * 32;
      const Int first = chunk.begin + warp * share, last = at_most(first + share, chunk.end);
      const int* const until = walk.net.until + walk.group.begin + chunk.offset;
      int* const list = walk.shared.awake[warp];
      int count = 0;
      for (Int at = first;; at += 32 * at_once) {
        const bool is_end = at >= last;
        if (!is_end) {
          int found[at_once];
#pragma unroll
          for (int u = 0; u < at_once; ++u) {
            const Int element = at + 32 * u + lane;
            found[u] = element < last ? __ldcg(until + element) : now - 1;
          }
#pragma unroll
          for (int u = 0; u < at_once; ++u) {
            const unsigned awake = __ballot_sync(~0u, found[u] >= now);
            const int before = __popc(awake & ((1u << lane) - 1));
            if (found[u] >= now) list[count + before] = static_cast<int>(at + 32 * u + lane);
            count += __popc(awake);
          }
        }
        __syncwarp();
        while (count >= 32 || (is_end && count > 0)) {
          const int stepped = count < 32 ? count : 32;
          count -= stepped;
          if (lane < stepped) step(round, chunk, list[count + lane], next);
        }
        __syncwarp();
        if (is_end) break;
      }
    }

    __device__ __forceinline__ void step(const Round& round, const Chunk& chunk, int element, int next) {
      Turn own(walk.net, walk.group, chunk, element, typename Steps::Neurons{element, element});
      walk.run(round, own);
      own.store();
      if (!own.rests) atomicMax(walk.net.until + own.first, next);
      ++stepped;
    }
  };
  using InLoop = typename event::Choose<Plan::skips && !DrawsOf<typename Steps::Cell>::any, Awake, InTurns>::type;
  using Owned = typename event::Choose<Plan::resident, Resident, InLoop>::type;

  static __device__ __forceinline__ void run(const Arguments& net, const Group& group, RoundsShared<Plan>& shared) {
    const Chunk chunk(net, group, blockIdx.x - group.first_block);  // the only one of a resident block
    const DoubleWord first_step = *net.step;
    const int slots = static_cast<int>(net.slots), steps = static_cast<int>(net.steps);
    const int own_threads = static_cast<int>(net.own_threads), at_once = static_cast<int>(net.round);
    const Sender sender(net);
    GridBarrier barrier;

    const int own_warps = own_threads / 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const bool is_owner = warp < own_warps, all_send = own_warps == warps, is_sender = all_send || !is_owner;
    const int first_sender = all_send ? 0 : own_warps;

    const int begin = static_cast<int>(chunk.first_neuron(group));
    Walk walk{net, group, shared, sender, first_step, steps - 1, own_threads, begin, chunk.shift};
    // Sends the spikes of a round, of steps before step `last`.
    const auto send = [&](int round, int last) {
      if (is_sender)
        send_listed(sender, round, walk.since_base(last + slots),
                    static_cast<Int>(warp - first_sender) * gridDim.x + blockIdx.x,
                    static_cast<Int>(warps - first_sender) * gridDim.x);
    };
    Owned owned(walk, chunk, is_owner);
    walk.draw(0);
    __syncthreads();
    Round round{0, 0, 0, static_cast<int>(first_step % slots)};
    for (; round.first < steps; ++round.number, round.first = round.last) {
      round.last = round.first + at_once < steps ? round.first + at_once : steps;
      if (round.number > 0) barrier.wait();
      if (blockIdx.x == 0 && threadIdx.x == 0) net.counts[(round.number + 1) % 3] = 0;
      if (is_owner) owned.run(round);
      if (round.number > 0) send(round.number - 1, round.first);
      barrier.arrive();
      if (round.last < steps) walk.draw(round.last);
      round.slot += round.last - round.first;
      while (round.slot >= slots) round.slot -= slots;
    }
    barrier.wait();
    send(round.number - 1, steps);
    if (is_owner) owned.end();
    if (blockIdx.x == 0 && threadIdx.x == 0) *net.step = static_cast<Int>(first_step) + steps;
  }
};

}  // namespace network
}  // namespace spikeforge
