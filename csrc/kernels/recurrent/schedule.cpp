#include <spikeforge/kernels/multistep/overrides.h>
#include <spikeforge/kernels/multistep/traced_cell.h>
#include <spikeforge/kernels/recurrent/schedule.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <span>

namespace spikeforge::kernels {
namespace {

using recurrent::Geometry;

constexpr std::int64_t samples_of_a_tile = 8;
constexpr std::int64_t most_delay = 64;  // what is on its way lies in shared memory

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }  // rounded up

bool is_forward(const RecurrentForwardLaunch&) { return true; }
bool is_forward(const RecurrentBackwardLaunch&) { return false; }

// Whether the first output is 0 or 1, whatever the cell is given.
bool fires(const Launch& launch) {
  if (launch.cell->maker == Cell::Maker::predefined) return launch.form.spiking;
  if (launch.cell->maker != Cell::Maker::traced) return false;
  const graph::Cell& cell = static_cast<const TracedCell&>(*launch.cell).graph;
  const graph::Op op = cell.graph()[cell.output(0)].op;
  return op == graph::Op::spike || op == graph::Op::spike_strict;
}

// 16-bit numbers that stand for a value on its way, or 0 for a bit. Outputs before the first step may be any numbers. A
// block reads its own numbers faster than it would make and read bits.
int numbers_sent(const RecurrentForwardLaunch& launch, int blocks) {
  if (fires(launch) && launch.spikes.data == nullptr) return blocks > 1 ? 0 : 1;
  return launch.type != DType::f32 ? 1 : 3;
}
int numbers_sent(const RecurrentBackwardLaunch& launch, int) { return launch.type != DType::f32 ? 1 : 3; }

bool has_state_gradients(const RecurrentForwardLaunch&) { return false; }
bool has_state_gradients(const RecurrentBackwardLaunch& launch) { return launch.store_states; }

// Whether all samples have the same: a lane's cells are made once, for the neurons of one sample.
bool is_by_neuron(const ParamView& param, std::int64_t width) {
  return param.data == nullptr || param.count == 1 || width % (param.inner * param.count) == 0;
}

// Kernels count in 32 bits, as far as a step is concerned.
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

template <class AnyLaunch>
bool is_served(const AnyLaunch& launch, const jit::Device& device) {
  const Recurrence& recurrence = launch.recurrence;
  return device.major >= 8 && !launch.cell->is_integer && launch.type != DType::f64 && launch.steps > 0 &&
         launch.steps < most_counted && launch.neurons > 0 && launch.neurons < most_counted &&
         recurrence.delay <= most_delay && are_rows(launch) &&
         std::ranges::all_of(launch.params,
                             [&](const ParamView& param) { return is_by_neuron(param, recurrence.width); });
}

// Instructions that a kernel is unrolled to at most: see multistep/schedule.cpp.
constexpr int most_unrolled = 6000;

struct Division {
  int blocks, split;
  int most_halves, most_floats;  // neurons, of 16-bit types and of float32
};

// Microseconds a step, forward + backward, on an H200, LIF, T = 1000, in the order of B = 64 and 256. float16, H = 128,
// one block 0.30 + 0.48, 0.30 + 0.49 (before constants were kept in registers and rows walked by pointers: 0.34 + 0.63,
// with two warps a sum 0.39 + 0.60, with four 0.45 + 0.74); H = 256, clusters of 4 0.38 + 0.52, 0.50 + 0.69, one block
// 0.72 + 1.19; H = 512, of 8 0.47 + 0.71, 1.08 + 1.92, with two tiles 0.53 + 0.70, 1.32 + 2.33, of 4 with two tiles
// 0.71 + 0.91, 1.32 + 1.62; H = 1024, of 16 1.38 + 1.85, 3.47 + 5.38. float32, B = 64, H = 128, one block 0.55 + 1.07,
// clusters of 4 0.35 + 0.72, of 16 0.71 + 2.42; H = 256, of 4 0.55 + 1.33; H = 512, of 16 0.71 + 2.40.
constexpr std::array in_clusters = {Division{1, 1, 128, 64},   Division{4, 2, 256, 0}, Division{8, 2, 512, 0},
                                    Division{4, 2, 512, 0},    Division{4, 4, 0, 256}, Division{8, 4, 768, 384},
                                    Division{16, 4, 1024, 512}};
constexpr std::array alone = {Division{1, 1, 256, 64}, Division{1, 2, 0, 160}};

bool has_clusters(const jit::Device& device) { return device.major == 9 || device.major == 10; }

std::span<const Division> divisions_on(const jit::Device& device) {
  if (has_clusters(device)) return in_clusters;
  return alone;
}

// Of a thread: weights, and what a step takes.
int registers_of(const Geometry& shape) {
  const bool in_pieces = shape.element == 4;
  return (in_pieces ? 3 : 1) * shape.padded / (2 * shape.split) + (in_pieces ? 60 : 90);
}

bool fits_registers(const Geometry& shape) {
  return shape.threads() <= 512 && registers_of(shape) <= std::min(65536 / shape.threads(), 255);
}

int shared_bytes(const Geometry& shape, bool forward) {
  return forward ? shape.forward_bytes() : shape.backward_bytes();
}

// Rows on their way: four hide the latency of memory behind the steps of a cluster, eight that behind those of a block.
// Where there is room, inputs have a power of two: which row a step's is then takes one instruction.
bool fit_shared(Geometry& shape, bool forward, int most) {
  for (const int ahead : {8, 4, 2})
    for (const int history : {16, 8, 4, 2, 1}) {
      if (!forward && (ahead == 8 || history > shape.checkpoint)) continue;
      shape.ahead = ahead;
      shape.history = forward ? 1 : history;
      const int least = forward ? 0 : shape.checkpoint + ahead;
      for (const int rows : {static_cast<int>(std::bit_ceil(static_cast<unsigned>(least))), least}) {
        shape.input_rows = rows;
        if (shared_bytes(shape, forward) <= most) return true;
      }
    }
  return false;
}

template <class AnyLaunch>
std::optional<RecurrentSchedule> find(const AnyLaunch& launch, const jit::Device& device,
                                      const MostClusters& most_clusters) {
  static const int forced_blocks = override_of("SPIKEFORGE_CLUSTER");
  static const int forced_split = override_of("SPIKEFORGE_SPLIT");
  static const int forced_tiles = override_of("SPIKEFORGE_TILES");
  if (!is_served(launch, device)) return {};
  const bool forward = is_forward(launch);
  const Cell& cell = *launch.cell;
  const std::int64_t width = launch.recurrence.width;
  const std::int64_t all_tiles = divided_up(launch.recurrence.batch, samples_of_a_tile);
  const int cost = cell.forward_cost + (forward ? 0 : cell.forward_cost + cell.backward_cost);
  std::optional<RecurrentSchedule> best;
  std::int64_t best_time = 0;
  for (const Division& division : divisions_on(device)) {
    if (forced_blocks != 0 && division.blocks != forced_blocks) continue;
    if (forced_split != 0 && division.split != forced_split) continue;
    if (width > (launch.type == DType::f32 ? division.most_floats : division.most_halves)) continue;
    const std::int64_t unit = 32 * std::max(division.blocks, division.split);
    const std::int64_t padded = divided_up(width, unit) * unit;
    if (padded > 1024) continue;
    Geometry shape{};
    shape.padded = static_cast<int>(padded);
    shape.blocks = division.blocks;
    shape.split = division.split;
    shape.tiles = 1;
    shape.element = static_cast<int>(size_of(launch.type));
    shape.sent = numbers_sent(launch, division.blocks);
    shape.delay = static_cast<int>(launch.recurrence.delay);
    shape.inputs = static_cast<int>(cell.inputs.size());
    shape.outputs = static_cast<int>(cell.outputs.size());
    shape.states = static_cast<int>(cell.states.size());
    shape.checkpoint = static_cast<int>(launch.checkpoint_length);
    shape.state_gradients = has_state_gradients(launch);
    if (!fits_registers(shape)) continue;
    const int most = most_shared_bytes(device);
    if (!fit_shared(shape, forward, most)) continue;
    // Blocks share a multiprocessor as far as their registers let them.
    const int residents = std::max(65536 / (shape.threads() * std::min(registers_of(shape) + 40, 256)), 1);
    const auto room = [&](const Geometry& of) -> std::int64_t {
      if (of.blocks == 1) return std::numeric_limits<std::int32_t>::max();
      return most_clusters(of.blocks, std::max(shared_bytes(of, forward), most / residents - 1024));
    };
    // Tiles of a cluster, up to as many as leave no cluster waiting for another.
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
      // A second tile costs half of what the first does, if it is computed while the first is on its way.
      const std::int64_t time = divided_up(all_tiles, clusters * tiles) * (1 + tiles);
      if (best && time >= best_time) continue;
      best_time = time;
      best = {.geometry = larger, .clusters = std::max(clusters, divided_up(all_tiles, tiles))};
      if (clusters * tiles >= all_tiles) break;
    }
  }
  return best;
}

}  // namespace

int most_shared_bytes(const jit::Device& device) {
  if (device.major == 9 || device.major == 10) return 227 << 10;
  if (device.major == 8 && (device.minor == 0 || device.minor == 7)) return 163 << 10;
  return 99 << 10;
}

std::optional<RecurrentSchedule> schedule_of(const RecurrentForwardLaunch& launch, const jit::Device& device,
                                             const MostClusters& most_clusters) {
  return find(launch, device, most_clusters);
}
std::optional<RecurrentSchedule> schedule_of(const RecurrentBackwardLaunch& launch, const jit::Device& device,
                                             const MostClusters& most_clusters) {
  return find(launch, device, most_clusters);
}

}  // namespace spikeforge::kernels
