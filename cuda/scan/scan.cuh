// Time-parallel passes over the whole GPU: blocks with the same neurons process parts of the sequence concurrently, for
// neurons too few to fill the device. The forward pass is that of cells whose next states are affine in their states, a
// scan; the backward pass is that of multistep.cuh, whose adjoint is affine for any cell.
//
// A warp processes a segment and computes its map of the states, a block a tile of as many segments as it has warps.
// Blocks exchange the maps of their tiles, at one grid barrier per turn. Each block joins the maps of the tiles since
// its previous one, and runs its segments from the resulting states. All joins have a fixed order: results do not
// depend on the order of execution.
//
// A Spec is that of multistep.cuh, with segments > 1. The forward pass has a second Spec, of the composition of the
// cell's steps, and `rows` is the length of a segment.
//
// Short names in addition to those of cuda/multistep/neurons.cuh: L steps of a segment; G segments of a block; M
// elements of a map, S rows of S + 1.
#pragma once

#include "cuda/grid_barrier.cuh"
#include "cuda/multistep/multistep.cuh"

namespace spikeforge {

// Stored after the loop's arguments.
struct SharedMaps {
  void* maps;        // of tiles, [3][all blocks]: of this turn and of the two previous ones, which may still be read
  void* sums;        // backward, of parameters' gradients: [all blocks][parameters][width][32]
  long long blocks;  // of the same neurons
};

template <class Cell> struct ScanArgs {
  ForwardArgs<Cell> loop;
  SharedMaps shared;
};

template <class Cell> struct ScanBackwardArgs {
  BackwardArgs<Cell> loop;
  SharedMaps shared;
};

// A block's view of the other blocks, and of its tiles: one in each turn.
template <class Spec> struct Tiles : Multistep<Spec> {
  using Loop = Multistep<Spec>;
  using Loop::apply;
  using Loop::G, Loop::S, Loop::W;
  using typename Loop::AffineMaps, typename Loop::F, typename Loop::Neurons;

  using States = F[W][room(S)];

  const SharedMaps& shared;
  int blocks, place, warp, lane;  // place: of the block among those of its neurons
  Neurons n;
  int steps, tile_steps, tiles, turns;

  template <class Args>
  __device__ __forceinline__ Tiles(const Args& a, const SharedMaps& shared, int segment)
      : shared(shared),
        blocks(static_cast<int>(shared.blocks)),
        place(static_cast<int>(blockIdx.x) % blocks),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        n(Neurons::of(static_cast<long long>(static_cast<int>(blockIdx.x) / blocks) * 32 + lane, a.neurons)),
        steps(static_cast<int>(a.steps)),
        tile_steps(segment * G),
        tiles((steps + tile_steps - 1) / tile_steps),
        turns((tiles + blocks - 1) / blocks) {}

  __device__ __forceinline__ bool has(int tile) const { return tile < tiles; }

  // A map as its images of each unit state, and of the zero state.
  struct Columns {
    States of[S + 1];

    __device__ __forceinline__ Columns() {
#pragma unroll
      for (int j = 0; j <= S; ++j)
#pragma unroll
        for (int k = 0; k < W; ++k)
#pragma unroll
          for (int s = 0; s < S; ++s) of[j][k][s] = F(s == j);
    }

    // Appends a map.
    __device__ __forceinline__ void follow(const AffineMaps& map) {
#pragma unroll
      for (int j = 0; j < S; ++j) Loop::template apply<false>(map, of[j]);
      apply(map, of[S]);
    }

    __device__ __forceinline__ void store(AffineMaps& map) const {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int s = 0; s < S; ++s) {
          map.constant[s][k][lane] = of[S][k][s];
#pragma unroll
          for (int j = 0; j < S; ++j) map.linear[s][j][k][lane] = of[j][k][s];
        }
    }
  };

  // The place of a tile's map, until the third turn after it.
  __device__ __forceinline__ AffineMaps& map_of(int tile) const {
    const int first = static_cast<int>(blockIdx.x) - place;
    return static_cast<AffineMaps*>(
        shared.maps)[tile / blocks % 3 * static_cast<int>(gridDim.x) + first + tile % blocks];
  }

  // Advances the states from the start of the block's previous tile, or of the sequence, to the start of this one.
  // `order` returns the index of the g-th map in the order of their application.
  template <class Order>
  __device__ __forceinline__ void advance(int tile, const AffineMaps (&maps)[G], AffineMaps (&joined)[G],
                                          const Order& order, States& state) const {
    if (warp == 0 && has(tile)) {
      Columns whole;
#pragma unroll 1
      for (int g = 0; g < G; ++g) whole.follow(maps[order(g)]);
      whole.store(map_of(tile));
    }
    wait_for_grid();
    const int share = (blocks + G - 1) / G;
    Columns part;
#pragma unroll 4
    for (int i = 0; i < share; ++i) {
      const int before = tile - blocks + warp * share + i;
      if (before >= 0 && before < tile && has(before)) part.follow(map_of(before));
    }
    part.store(joined[warp]);
    __syncthreads();
#pragma unroll 1
    for (int g = 0; g < G; ++g) apply(joined[g], state);
  }

  // Advances the states from the start of a tile to the start of the warp's segment, and to the end of the tile.
  template <class Order>
  __device__ __forceinline__ void enter(const AffineMaps (&maps)[G], const Order& order, const States& before,
                                        States& own, States& behind) const {
    copy(before, behind);
#pragma unroll 4
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int s = 0; s < S; ++s) own[k][s] = select(order(g) == warp, behind[k][s], own[k][s]);
      apply(maps[order(g)], behind);
    }
  }

  static __device__ __forceinline__ void copy(const States& from, States& to) {
#pragma unroll
    for (int k = 0; k < W; ++k)
#pragma unroll
      for (int s = 0; s < S; ++s) to[k][s] = from[k][s];
  }
};

template <class Spec, class Composition> struct Scan {
  using Loop = Multistep<Spec>;
  using Composing = Multistep<Composition>;
  using Cell = typename Loop::Cell;
  using F = typename Loop::F;
  using AffineMaps = typename Loop::AffineMaps;
  using InputPack = typename Loop::InputPack;
  using Neurons = typename Loop::Neurons;
  static constexpr int L = Spec::rows, G = Loop::G, W = Loop::W, I = Loop::I, S = Loop::S;
  static constexpr int M = S * (S + 1);
  static_assert(Composing::S == M && Composing::I == I && Composing::W == W, "");
  static_assert(!Spec::save || L % Loop::C == 0, "a checkpoint is the state from which its segment is walked");

  struct Segment {
    InputPack x[L][I];

    __device__ __forceinline__ void load(const ForwardArgs<Cell>& a, Neurons n, int t0) {
#pragma unroll
      for (int c = 0; c < I; ++c) {
        auto rows = Loop::template rows_of<typename Spec::Input>(a.x[c], t0, n);
#pragma unroll
        for (int u = 0; u < L; ++u) {
          const auto* row = rows.next();
          if (t0 + u < a.steps) x[u][c] = Neurons::load(row);
        }
      }
    }
  };

  // The map of a segment without steps is the identity.
  static __device__ __forceinline__ void find_map(const typename Composing::Cells& cells, const Segment& segment,
                                                  int length, AffineMaps& map) {
    const int lane = threadIdx.x % 32;
    F entry[W][M];
#pragma unroll
    for (int k = 0; k < W; ++k) cells.cell[k].initial(entry[k]);
#pragma unroll
    for (int u = 0; u < L; ++u) {
      if (u >= length) break;
      F in[I][W];
#pragma unroll
      for (int c = 0; c < I; ++c) segment.x[u][c].unpack(in[c]);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        F x[I], none[1];
#pragma unroll
        for (int c = 0; c < I; ++c) x[c] = in[c][k];
        cells.cell[k].step(x, entry[k], none);
      }
    }
#pragma unroll
    for (int k = 0; k < W; ++k)
#pragma unroll
      for (int s = 0; s < S; ++s) {
#pragma unroll
        for (int j = 0; j < S; ++j) map.linear[s][j][k][lane] = entry[k][s * S + j];
        map.constant[s][k][lane] = entry[k][S * S + s];
      }
  }

  static __device__ __forceinline__ void walk(const ForwardArgs<Cell>& a, const typename Loop::Cells& cells, Neurons n,
                                              const Segment& segment, int t0, F (&state)[W][room(S)]) {
    const int steps = static_cast<int>(a.steps);
    if (t0 >= steps) return;
    typename Loop::ForwardCursors cursors(a, n, t0);
#pragma unroll
    for (int u = 0; u < L; ++u)
      if (t0 + u < steps) Loop::template step_and_store<L>(cells, segment.x[u], t0 + u, u, cursors, state);
    if (t0 + L >= steps) Loop::store_last(cursors, state);
  }

  static __device__ __forceinline__ void forward(const ScanArgs<Cell>& args) {
    __shared__ AffineMaps maps[G], joined[G];
    const ForwardArgs<Cell>& a = args.loop;
    const Tiles<Spec> at(a, args.shared, L);
    const auto in_time = [](int g) { return g; };
    const auto first_step = [&](int tile) { return tile * at.tile_steps + at.warp * L; };

    Segment segment;
    segment.load(a, at.n, first_step(at.place));
    const typename Loop::Cells cells(a, at.n);
    const typename Composing::Cells composing(a, at.n);
    F before[W][room(S)], own[W][room(S)], behind[W][room(S)];
    Loop::load_initial(a, cells, at.n, before);
#pragma unroll 1
    for (int turn = 0; turn < at.turns; ++turn) {
      const int tile = turn * at.blocks + at.place, t0 = first_step(tile);
      find_map(composing, segment, at.steps - t0, maps[at.warp]);
      Segment next;  // in flight at the same time
      if (turn + 1 < at.turns) next.load(a, at.n, first_step(tile + at.blocks));
      __syncthreads();
      if (at.blocks > 1) at.advance(tile, maps, joined, in_time, before);
      at.enter(maps, in_time, before, own, behind);
      if (at.blocks == 1) at.copy(behind, before);
      walk(a, cells, at.n, segment, t0, own);
      segment = next;
      __syncthreads();
    }
  }
};

template <class Spec> struct ScanBackward {
  using Loop = Multistep<Spec>;
  using Cell = typename Loop::Cell;
  using F = typename Loop::F;
  using AffineMaps = typename Loop::AffineMaps;
  using Behind = typename Loop::Behind;
  static constexpr int C = Loop::C, G = Loop::G, W = Loop::W, S = Loop::S, P = Loop::P;
  static constexpr Behind behind_last = Spec::ragged ? Behind::dropped : Behind::none;

  using Params = F[W][room(P)];

  // Adds a block's sums of the gradients with respect to parameters, or of their factors, for the block with the first
  // steps. The sums are in the first warp of the block.
  static __device__ __forceinline__ void add_blocks(const Tiles<Spec>& at, Params& grad_param) {
    const auto sum = [&](int block, int j, int k) -> F& {
      const int first = static_cast<int>(blockIdx.x) - at.place;
      return static_cast<F*>(at.shared.sums)[((first + block) * room(P) + j) * W * 32 + k * 32 + at.lane];
    };
    if (at.warp == 0)
#pragma unroll
      for (int j = 0; j < P; ++j)
#pragma unroll
        for (int k = 0; k < W; ++k) sum(at.place, j, k) = grad_param[k][j];
    wait_for_grid();
    if (at.warp != 0) return;
#pragma unroll
    for (int j = 0; j < P; ++j)
#pragma unroll
      for (int k = 0; k < W; ++k) {
        grad_param[k][j] = F(0);
        for (int block = 0; block < at.blocks; ++block) grad_param[k][j] += sum(block, j, k);
      }
  }

  // Processes tiles, and the segments of each, from the last steps to the first.
  static __device__ __forceinline__ void backward(const ScanBackwardArgs<Cell>& args) {
    __shared__ AffineMaps maps[G], joined[G];
    const BackwardArgs<Cell>& a = args.loop;
    const Tiles<Spec> at(a, args.shared, C);
    const auto back = [](int g) { return G - 1 - g; };

    const typename Loop::Cells cells(a, at.n);
    typename Loop::Gradients grad;
    F own[W][room(S)], behind[W][room(S)];
    if (!Spec::store_states) Loop::add_grad_states(a, 0, at.n, grad.state);
#pragma unroll 1
    for (int turn = 0; turn < at.turns; ++turn) {
      const int tile = turn * at.blocks + at.place;
      const int t0 = (at.tiles - 1 - tile) * at.tile_steps + at.warp * C;
      typename Loop::Segment segment;
      if (at.has(tile)) {
        Loop::template load_rows<behind_last>(a, at.n, t0, segment);
        Loop::template recompute<behind_last>(a, cells, at.n, segment);
        Loop::template find_map<behind_last>(a, cells, at.n, segment, maps[at.warp]);
      }
      __syncthreads();
      at.advance(tile, maps, joined, back, grad.state);
      if (at.has(tile)) {
        at.enter(maps, back, grad.state, own, behind);
        Loop::template walk_back<behind_last>(a, cells, at.n, segment, own, grad.param, grad.of_starts);
      }
      __syncthreads();
    }
    if (Loop::any_grad_param()) {
      Loop::join_params(maps, at.warp, grad);
      add_blocks(at, grad.param);
    }
    if (at.warp != 0 || at.place != (at.tiles - 1) % at.blocks) return;
    at.copy(behind, grad.state);
    F start[W][room(S)] = {};
    Loop::store_grad_initial(a, at.n, grad, start);
    Loop::finish_grad_params(cells, start, grad);
    Loop::store_grad_params(a, at.n, grad);
  }
};

}  // namespace spikeforge
