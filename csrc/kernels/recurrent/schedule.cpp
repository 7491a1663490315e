#include "csrc/kernels/recurrent/schedule.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/multistep/schedule.h"
#include "csrc/kernels/multistep/traced_cell.h"
#include "csrc/kernels/shared_bytes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

namespace spikeforge::kernels {
namespace {

using recurrent::Geometry;

constexpr std::int64_t samples_of_a_tile = 8;
constexpr std::int64_t most_delay = 64;  // values in flight are in shared memory

bool is_forward(const RecurrentForwardLaunch&) { return true; }
bool is_forward(const RecurrentBackwardLaunch&) { return false; }

// True if the first output is 0 or 1 for all inputs of the cell.
bool fires(const Launch& launch) {
  const graph::Cell& cell = static_cast<const TracedCell&>(*launch.cell).graph;
  const graph::Op op = cell.graph()[cell.output(0)].op;
  return op == graph::Op::spike || op == graph::Op::spike_strict;
}

// Returns the 16-bit numbers per value in flight, or 0 for a bit. Outputs before the first step may be any numbers. If
// there is only one block, reading numbers is faster than packing and unpacking bits.
int numbers_sent(const RecurrentForwardLaunch& launch, int blocks) {
  if (fires(launch) && launch.spikes.data == nullptr) return blocks > 1 ? 0 : 1;
  return launch.type != DType::f32 ? 1 : 3;
}
int numbers_sent(const RecurrentBackwardLaunch& launch, int) { return launch.type != DType::f32 ? 1 : 3; }

bool has_state_gradients(const RecurrentForwardLaunch&) { return false; }
bool has_state_gradients(const RecurrentBackwardLaunch& launch) { return launch.store_states; }

// True if all samples have the same values: the cells of a lane are constructed once, for the neurons of one sample.
bool is_by_neuron(const ParamView& param, std::int64_t width) {
  return param.data == nullptr || param.count == 1 || width % (param.inner * param.count) == 0;
}

// Kernels use 32-bit indices within a step.
constexpr std::int64_t most_counted = std::numeric_limits<std::int32_t>::max();

bool are_rows(std::span<const SequenceView> rows, bool of_one_element) {
  return std::ranges::all_of(rows, [&](const SequenceView& view) {
    return view.data == nullptr ||
           (std::abs(view.time_stride) <= most_counted && (of_one_element || view.neuron_stride == 1));
  });
}

bool are_rows(const RecurrentForwardLaunch& launch) { return are_rows(launch.inputs, false); }
bool are_rows(const RecurrentBackwardLaunch& launch) {
  return are_rows(launch.inputs, false) && are_rows(launch.grad_outputs, true) && are_rows(launch.grad_states, true);
}

template <class AnyLaunch> bool is_served(const AnyLaunch& launch, const jit::Device& device) {
  const Recurrence& recurrence = launch.recurrence;
  return device.major >= 8 && launch.cell->maker == Cell::Maker::traced && launch.type != DType::f64 &&
         launch.steps > 0 && launch.steps < most_counted && launch.neurons > 0 && launch.neurons < most_counted &&
         recurrence.delay <= most_delay && are_rows(launch) &&
         std::ranges::all_of(launch.params,
                             [&](const ParamView& param) { return is_by_neuron(param, recurrence.width); });
}

// The maximum number of instructions to which a kernel is unrolled: see multistep/schedule.cpp.
constexpr int most_unrolled = 6000;

// The number of blocks from which one copy of a message to all of them is faster than a store to each. Microseconds per
// backward step, LIF, T = 1000, float16, on an H200, by stores and by copies: 4 blocks, H = 256, B = 64 0.38, 0.45; 8,
// H = 512, B = 64 0.57, 0.56; 16, H = 1024, B = 64 1.61, 1.42, B = 256 4.76, 4.09. Only the exchange, with five tiles
// in 16 blocks: 0.55 per tile by stores, 0.62 by one copy per block from shared memory, 0.21 by one copy from memory.
constexpr int fewest_by_memory = 8;

struct Division {
  int blocks, row, split;
  int most_halves, most_floats;  // neurons, for 16-bit types and for float32
};

// If two divisions take equal times, the first one is chosen. Microseconds per step, LIF, T = 1000, float16, on an
// H100, in the order of B = 64 and 256.
//
// Forward: H = 128, one block 0.29, 0.29, with rows of 16 neurons 0.33, 0.33; H = 256, clusters of 4 0.37, 0.48, with
// rows of 16 0.38, 0.53, of 2 0.54, 0.54; H = 512, of 8 0.47, 1.05, with rows of 16 0.54, 1.25, of 4 with two tiles
// 1.24 at B = 256; H = 1024, of 16 1.33, 3.26. With fewer branches per step, the chosen ones take 0.27, 0.27; 0.34,
// 0.47; 0.45, 0.98; 1.16, 2.71. float32, B = 64, on an H200, H = 128, one block 0.55, clusters of 4 0.35; H = 256, of 4
// 0.55; H = 512, of 16 0.71.
constexpr std::array forward_in_clusters = {Division{1, 32, 1, 128, 64},   Division{4, 32, 2, 256, 0},
                                            Division{8, 32, 2, 512, 0},    Division{4, 32, 2, 512, 0},
                                            Division{4, 32, 4, 0, 256},    Division{8, 32, 4, 768, 384},
                                            Division{16, 32, 4, 1024, 512}};

// Backward: H = 128, one block 0.40, 0.41, with rows of 16 neurons 0.45, 0.45; H = 256, clusters of 4 with rows of 16
// 0.39, 0.65, of 32 0.44, 0.64, of 2 0.57, 0.57; H = 512, of 8 with rows of 16 0.59, 1.51, of 32 0.63, 1.55, of 4 with
// two tiles 1.53 at B = 256; H = 1024, of 16 1.72, 4.64. Without separate warps that recompute: H = 128 0.43, 0.44; H =
// 256, of 4 0.51, 0.64; H = 512, of 8 0.69, 1.55. With copied messages in large clusters, and tiles that are recomputed
// together, the chosen ones take 0.39, 0.40; 0.37, 0.55; 0.56, 1.45; 1.39, 3.67 on an H200.
constexpr std::array backward_in_clusters = {Division{1, 32, 1, 128, 64},  Division{4, 16, 1, 256, 0},
                                             Division{2, 32, 1, 256, 0},   Division{8, 16, 1, 512, 0},
                                             Division{4, 32, 2, 512, 0},   Division{4, 32, 4, 0, 256},
                                             Division{8, 32, 4, 768, 384}, Division{16, 32, 4, 1024, 512}};
constexpr std::array alone = {Division{1, 32, 1, 256, 64}, Division{1, 32, 2, 0, 160}};

bool has_clusters(const jit::Device& device) { return device.major == 9 || device.major == 10; }

std::span<const Division> divisions_on(const jit::Device& device, bool forward) {
  if (!has_clusters(device)) return alone;
  if (forward) return forward_in_clusters;
  return backward_in_clusters;
}

// Returns the registers of a thread: weights, and the working set of a step.
int registers_of(const Geometry& shape) {
  const bool in_pieces = shape.element == 4;
  return (in_pieces ? 3 : 1) * shape.padded * shape.row / (64 * shape.split) + (in_pieces ? 60 : 90);
}

bool fits_registers(const Geometry& shape) {
  return shape.block() <= 512 && registers_of(shape) <= std::min(65536 / shape.block(), 255);
}

int shared_bytes(const Geometry& shape, bool forward) {
  return forward ? shape.forward_bytes() : shape.backward_bytes();
}

// Chooses the rows in flight: four hide the latency of memory during the steps of a cluster, eight during those of a
// block. If shared memory suffices, the number of input rows is a power of two: the row of a step is then computed in
// one instruction.
bool fit_shared(Geometry& shape, bool forward, int most) {
  for (const int ahead : {8, 4, 2})
    for (const int history : {16, 8, 4, 2, 1}) {
      if (!forward && (ahead == 8 || history > shape.checkpoint)) continue;
      if (shape.apart && 2 * history < shape.checkpoint) continue;  // too many steps would be recomputed twice
      shape.ahead = ahead;
      shape.history = forward ? 1 : history;
      const int least = forward ? 0 : shape.apart ? 2 * shape.checkpoint : shape.checkpoint + ahead;
      for (const int rows : {static_cast<int>(std::bit_ceil(static_cast<unsigned>(least))), least}) {
        shape.input_rows = rows;
        if (shared_bytes(shape, forward) <= most) return true;
      }
    }
  return false;
}

struct Candidate {
  Division division;
  bool apart;
};

// Returns the candidates. Those in which separate warps recompute the states are first, because they are the fastest.
std::vector<Candidate> candidates_on(const jit::Device& device, bool forward) {
  static const int forced_blocks = override_of("SPIKEFORGE_CLUSTER");
  static const int forced_row = override_of("SPIKEFORGE_ROW");
  static const int forced_split = override_of("SPIKEFORGE_SPLIT");
  std::vector<Candidate> candidates;
  for (const bool apart : {true, false})
    for (const Division& division : divisions_on(device, forward)) {
      if (apart && forward) continue;
      if (forced_blocks != 0 && division.blocks != forced_blocks) continue;
      if (forced_row != 0 && division.row != forced_row) continue;
      if (forced_split != 0 && division.split != forced_split) continue;
      candidates.push_back({division, apart});
    }
  return candidates;
}

// Returns the geometry of a layer and a division, for a single tile.
template <class AnyLaunch> Geometry geometry_of(const AnyLaunch& launch, const Candidate& candidate, int padded) {
  const Cell& cell = *launch.cell;
  Geometry shape{};
  shape.padded = padded;
  shape.blocks = candidate.division.blocks;
  shape.row = candidate.division.row;
  shape.split = candidate.division.split;
  shape.tiles = 1;
  shape.element = static_cast<int>(size_of(launch.type));
  shape.sent = numbers_sent(launch, shape.blocks);
  shape.delay = static_cast<int>(launch.recurrence.delay);
  shape.inputs = static_cast<int>(cell.inputs.size());
  shape.outputs = static_cast<int>(cell.outputs.size());
  shape.states = static_cast<int>(cell.states.size());
  shape.checkpoint = static_cast<int>(launch.checkpoint_length);
  shape.coefficients = is_forward(launch) ? 0 : static_cast<const TracedCell&>(cell).coefficients;
  shape.state_gradients = has_state_gradients(launch);
  shape.apart = candidate.apart;
  shape.by_memory = shape.sent > 0 && shape.blocks >= fewest_by_memory;
  return shape;
}

template <class AnyLaunch>
std::optional<RecurrentSchedule> find(const AnyLaunch& launch, const jit::Device& device,
                                      const MostClusters& most_clusters) {
  static const int forced_tiles = override_of("SPIKEFORGE_TILES");
  if (!is_served(launch, device)) return {};
  const bool forward = is_forward(launch);
  const Cell& cell = *launch.cell;
  const std::int64_t width = launch.recurrence.width;
  const std::int64_t all_tiles = divided(launch.recurrence.batch, samples_of_a_tile);
  const int cost = cell.forward_cost + (forward ? 0 : cell.forward_cost + cell.backward_cost);
  std::optional<RecurrentSchedule> best;
  std::int64_t best_time = 0;
  for (const Candidate& candidate : candidates_on(device, forward)) {
    const Division& division = candidate.division;
    if (width > (launch.type == DType::f32 ? division.most_floats : division.most_halves)) continue;
    const std::int64_t unit = 32 * std::max(division.blocks, division.split);
    const std::int64_t padded = divided(width, unit) * unit;
    if (padded > 1024) continue;
    Geometry shape = geometry_of(launch, candidate, static_cast<int>(padded));
    if (!fits_registers(shape)) continue;
    const int most = most_shared_bytes(device);
    if (!fit_shared(shape, forward, most)) continue;
    // The number of blocks per multiprocessor is limited by their registers.
    const int residents = std::max(65536 / (shape.block() * std::min(registers_of(shape) + 40, 256)), 1);
    const auto room = [&](const Geometry& of) -> std::int64_t {
      if (of.blocks == 1) return std::numeric_limits<std::int32_t>::max();
      return most_clusters(of.blocks, std::max(shared_bytes(of, forward), most / residents - 1024));
    };
    const auto fits = [&](int tiles) {
      Geometry larger = shape;
      larger.tiles = tiles;
      return tiles * larger.lane_values() * cost <= most_unrolled && fit_shared(larger, forward, most);
    };
    for (int tiles = 1; tiles <= 5 && fits(tiles); ++tiles) {
      if (forced_tiles != 0 && tiles != forced_tiles) continue;
      Geometry larger = shape;
      larger.tiles = tiles;
      fit_shared(larger, forward, most);
      const std::int64_t clusters = std::min(room(larger), all_tiles);
      if (clusters < 1) continue;
      // A second tile costs half of the first, if it is computed while the first is in flight. If not all clusters are
      // resident at once, they run in several rounds, with the smallest number of tiles for these rounds. Separate
      // warps that recompute save a quarter.
      const std::int64_t rounds = divided(all_tiles, clusters * tiles);
      const std::int64_t time = (rounds + divided(all_tiles, clusters)) * (candidate.apart ? 3 : 4);
      if (best && time >= best_time) continue;
      best_time = time;
      best = {.geometry = larger, .clusters = std::min(clusters * rounds, all_tiles)};
      if (clusters * tiles >= all_tiles) break;
    }
  }
  return best;
}

// ---- clusters of blocks that a device has room for ----

constexpr unsigned probe_threads = 128;

int ask(const jit::Device& device, int blocks, int bytes) {
  const int index = jit::Driver::get().device();
  const jit::LoadedKernel& probe = jit::KernelCache::get().get(print_cluster_probe(), jit::name_of_arch(device));
  probe.allow_shared(most_shared_bytes(device), index);
  probe.allow_large_clusters(index);
  return probe.most_clusters(static_cast<unsigned>(blocks), probe_threads, static_cast<unsigned>(bytes));
}

}  // namespace

std::optional<RecurrentSchedule> schedule_of(const RecurrentForwardLaunch& launch, const jit::Device& device,
                                             const MostClusters& most_clusters) {
  return find(launch, device, most_clusters);
}
std::optional<RecurrentSchedule> schedule_of(const RecurrentBackwardLaunch& launch, const jit::Device& device,
                                             const MostClusters& most_clusters) {
  return find(launch, device, most_clusters);
}

int most_clusters(const jit::Device& device, int blocks, int bytes) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::tuple<int, int, int>, int>;  // by device index, blocks and bytes
  const std::scoped_lock lock(mutex);
  const std::tuple key(jit::Driver::get().device(), blocks, bytes);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = ask(device, blocks, bytes);
}

int usual_clusters(const jit::Device& device, int blocks, int bytes) {
  // An H200 with 132 multiprocessors: 30 clusters of 4 blocks, 15 of 8, 7 of 16.
  constexpr int of = 132;
  const int there = blocks <= 2 ? 66 : blocks == 4 ? 30 : blocks == 8 ? 15 : 7;
  const int together = std::max(most_shared_bytes(device) / std::max(bytes, 1), 1);
  return std::max(there * together * device.multiprocessors / of, 1);
}

jit::KernelSource print_cluster_probe() {
  return {.name = "cluster_probe",
          .entry = "spikeforge_cluster_probe",
          .text = R"(  // Never launched: the driver is queried for the number of resident clusters of its blocks.
extern "C" __global__ void __launch_bounds__(128) spikeforge_cluster_probe(int* out) {
  extern __shared__ int memory[];
  memory[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = memory[127 - threadIdx.x];
}
)"};
}

}  // namespace spikeforge::kernels
