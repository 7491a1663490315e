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

std::int64_t divided(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }  // rounded up

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
    return view.data == nullptr || (std::abs(view.time_stride) <= most_counted && (of_one_element || view.neuron_stride == 1));
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
         launch.steps < most_counted && launch.neurons > 0 && launch.neurons < most_counted && recurrence.delay == 1 &&
         are_rows(launch) && std::ranges::all_of(launch.params, [&](const ParamView& param) {
           return is_by_neuron(param, recurrence.width);
         });
}

// Instructions that a kernel is unrolled to at most: see multistep/schedule.cpp.
constexpr int most_unrolled = 6000;

struct Division {
  int blocks, split;
};

// In the order of preference where there is room. Microseconds a step forward and backward on an H200, LIF, T = 1000,
// of a prototype that sends spikes as bits: H = 128, one block 0.26 + 0.29, clusters of 2 no less; H = 256, B = 64, of 4
// 0.32 + 0.39; H = 512, of 8 0.51 + 0.59; H = 1024, of 16 1.19 + 1.59. float32: H = 128 of 4 0.31 + 0.59; H = 256 of 8
// 0.41 + 1.07. A step of a cluster begins with the way of 500 ns through the network; what is sent comes at 14 bytes a
// cycle and multiprocessor.
constexpr std::array divisions = {Division{1, 1}, Division{1, 2}, Division{2, 2}, Division{4, 2}, Division{4, 4},
                                  Division{8, 2}, Division{8, 4}, Division{16, 2}, Division{16, 4}};

// Of a thread: weights, and 90 beside them.
bool fits_registers(const Geometry& shape) {
  const int pieces = shape.element == 4 ? 3 : 1;
  const int weights = pieces * shape.padded / (2 * shape.split);
  const int most = std::min(65536 / shape.threads(), 255);
  return shape.threads() <= 512 && weights <= 192 && weights + (pieces == 3 ? 60 : 90) <= most;
}

int shared_bytes(const Geometry& shape, bool forward) {
  return forward ? shape.forward_bytes() : shape.backward_bytes();
}

// Rows on their way: four hide the latency of memory behind the steps of a cluster, eight that behind those of a block.
bool fit_shared(Geometry& shape, bool forward, int most) {
  for (const int ahead : {8, 4, 2})
    for (const int history : {16, 8, 4, 2, 1}) {
      if (!forward && (ahead == 8 || history > shape.checkpoint)) continue;
      shape.ahead = ahead;
      shape.history = forward ? 1 : history;
      if (shared_bytes(shape, forward) <= most) return true;
    }
  return false;
}

bool has_clusters(const jit::Device& device) { return device.major == 9 || device.major == 10; }

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
  const std::int64_t all_tiles = divided(launch.recurrence.batch, samples_of_a_tile);
  const int cost = cell.forward_cost + (forward ? 0 : cell.forward_cost + cell.backward_cost);
  std::optional<RecurrentSchedule> best;
  std::int64_t best_waves = 0;
  for (const Division& division : divisions) {
    if (forced_blocks != 0 && division.blocks != forced_blocks) continue;
    if (forced_split != 0 && division.split != forced_split) continue;
    if (division.blocks > 1 && !has_clusters(device)) continue;
    const std::int64_t unit = 32 * std::max(division.blocks, division.split);
    const std::int64_t padded = divided(width, unit) * unit;
    if (padded > 1024) continue;
    Geometry shape{};
    shape.padded = static_cast<int>(padded);
    shape.blocks = division.blocks;
    shape.split = division.split;
    shape.tiles = 1;
    shape.element = static_cast<int>(size_of(launch.type));
    shape.sent = numbers_sent(launch, division.blocks);
    shape.inputs = static_cast<int>(cell.inputs.size());
    shape.outputs = static_cast<int>(cell.outputs.size());
    shape.states = static_cast<int>(cell.states.size());
    shape.checkpoint = static_cast<int>(launch.checkpoint_length);
    shape.state_gradients = has_state_gradients(launch);
    if (!fits_registers(shape)) continue;
    const int most = most_shared_bytes(device);
    if (!fit_shared(shape, forward, most)) continue;
    const std::int64_t room = division.blocks == 1 ? std::numeric_limits<std::int32_t>::max() : most_clusters(division.blocks);
    if (room < 1) continue;
    // As many tiles as leave no cluster waiting for another, as far as they fit.
    const auto fits = [&](int tiles) {
      Geometry larger = shape;
      larger.tiles = tiles;
      return tiles * larger.lane_values() * cost <= most_unrolled && fit_shared(larger, forward, most);
    };
    if (!fits(1)) continue;
    int most_tiles = 1;
    while (most_tiles < 5 && room * most_tiles < all_tiles && fits(most_tiles + 1)) ++most_tiles;
    if (forced_tiles != 0) most_tiles = std::min(most_tiles, forced_tiles);
    const std::int64_t waves = divided(all_tiles, room * most_tiles);
    shape.tiles = static_cast<int>(divided(all_tiles, room * waves));
    fit_shared(shape, forward, most);
    const std::int64_t turns = waves * shape.tiles;
    if (best && turns >= best_waves) continue;
    best_waves = turns;
    best = {.geometry = shape, .clusters = std::max(std::min(room, all_tiles), divided(all_tiles, shape.tiles))};
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
