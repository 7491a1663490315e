#include "csrc/kernels/layer/batch_norm_schedule.h"
#include "csrc/kernels/layer/divisor.h"
#include "csrc/kernels/shared_bytes.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace spikeforge::layers {
namespace {

using namespace kernels;

// ---- the distribution of neurons over blocks ----

// Returns the maximum number of aligned groups that n consecutive elements touch.
std::int64_t touched(std::int64_t n, std::int64_t group) { return (n + group - 2) / group + 1; }

// Returns the tiles. The width of a strip is a multiple of `unit`, and at most `widest` threads. With `of_one_strip`, a
// block processes tiles of one strip only, and some blocks have fewer tiles; otherwise all blocks have the same number,
// and some continue in the next strip.
ChannelTiles tiles_of(const ParamView& shift, std::int64_t rows, int width, std::int64_t unit, std::int64_t widest,
                      std::int64_t blocks, bool of_one_strip) {
  constexpr std::int64_t most_for_itself = 8 * Block().threads;  // parts of sums
  const std::int64_t period = shift.inner * shift.count, columns = period / width;
  const std::int64_t strips = divided(columns, widest), across = divided(divided(columns, strips), unit) * unit;
  const std::int64_t down = std::min(Block().threads / across, rows), tiles = divided(rows, down);
  const std::int64_t each =
      of_one_strip ? divided(tiles, std::max<std::int64_t>(blocks / strips, 1)) : divided(strips * tiles, blocks);
  const std::int64_t depth = of_one_strip ? divided(tiles, each) * each : tiles;  // no tile is entirely after the rows
  const std::int64_t runs = of_one_strip ? 1 : touched(each, depth),
                     blocks_of_strip = of_one_strip ? depth / each : touched(depth, each), neurons = across * width;
  const std::int64_t slots = touched(neurons, shift.inner), strips_of_channel = touched(shift.inner, neurons);
  const auto of = [](std::int64_t number) { return static_cast<int>(number); };
  const auto threads = static_cast<std::uint64_t>(std::max<std::int64_t>(Block().threads / slots, 1));
  return {.rows = of(rows),
          .period = of(period),
          .inner = of(shift.inner),
          .channels = of(shift.count),
          .across = of(across),
          .down = of(down),
          .strips = of(strips),
          .depth = of(depth),
          .each = of(each),
          .runs = of(runs),
          .blocks_of_strip = of(blocks_of_strip),
          .slots = of(slots),
          .parts = of(static_cast<std::int64_t>(std::bit_floor(threads))),
          .own_channels = runs * slots * strips_of_channel * blocks_of_strip <= most_for_itself ? of(runs * slots) : 0};
}

// Returns the tiles with the lowest cost. Neighbouring threads read 32 or more neighbours, so that accesses are
// coalesced; if these share a channel, wider strips have fewer runs. The sums of a run take about as long as 3 tiles
// (an H200, images of 7 x 7 to 112 x 112).
ChannelTiles tiles_of(const Launch& run, int width, std::int64_t unit, std::int64_t blocks) {
  const ParamView& shift = shift_of(run);
  const std::int64_t rows = run.neurons / (shift.inner * shift.count);
  const auto cost = [](const ChannelTiles& tiles) { return tiles.each + 3 * tiles.runs; };
  ChannelTiles best = tiles_of(shift, rows, width, unit, 32, blocks, /*of_one_strip=*/false);
  for (const std::int64_t widest : {32, 64, 128, 256}) {
    if (widest > 32 && shift.inner == 1) break;
    for (const bool of_one_strip : {false, true}) {
      const ChannelTiles found = tiles_of(shift, rows, width, unit, widest, blocks, of_one_strip);
      if (blocks_of(found) <= blocks && cost(found) < cost(best)) best = found;
    }
  }
  return best;
}

// ---- the distribution with a ring of tiles ----

// The maximum number of parts of a channel that each block adds up itself.
constexpr std::int64_t most_parts = 16;

// Returns tiles whose strips are at most `widest` threads wide. Rows of a tile are whole cache lines, if they are at
// least that long.
RingTiles ring_tiles_of(const ParamView& shift, std::int64_t rows, int width, std::int64_t line, std::int64_t widest,
                        std::int64_t threads, std::int64_t blocks) {
  const std::int64_t period = shift.inner * shift.count, columns = period / width;
  const std::int64_t even = divided(columns, divided(columns, widest));
  const std::int64_t across = even < line ? even : std::min(divided(even, line) * line, columns),
                     strips = divided(columns, across);
  const std::int64_t down = std::min(threads / across, rows), tiles = divided(rows, down);
  const std::int64_t members = std::clamp<std::int64_t>(blocks / strips, 1, tiles);
  const std::int64_t units = divided(strips, std::max<std::int64_t>(blocks / members, 1)), neurons = across * width;
  const std::int64_t channels = shift.inner == 1 ? neurons : std::min(touched(neurons, shift.inner), shift.count);
  const auto of = [](std::int64_t number) { return static_cast<int>(number); };
  const std::int64_t strips_apart = divided(strips, units), own = divided(channels, members);
  return {.rows = of(rows),
          .period = of(period),
          .inner = of(shift.inner),
          .channels = of(shift.count),
          .across = of(across),
          .down = of(down),
          .strips = of(strips),
          .members = of(members),
          .strips_apart = of(strips_apart),
          .each = of(divided(tiles, members)),
          .units = of(units),
          .local_channels = of(channels),
          .sharers = of(std::max<std::int64_t>(threads / channels, 1)),
          .has_totals = members * (shift.inner == 1 ? 1 : touched(shift.inner, neurons)) > most_parts,
          .own_channels = of(own),
          .own_beside = of(
              static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(own, 32)))))};
}

void set_divisors(RingTiles& tiles, int width) {
  tiles.by_inner = divisor_of(tiles.inner);
  tiles.by_across = divisor_of(tiles.across);
  tiles.by_members = divisor_of(tiles.members);
  tiles.by_local_channels = divisor_of(tiles.local_channels);
  tiles.by_width = divisor_of(std::int64_t{tiles.across} * width);
  tiles.by_span = divisor_of(std::min(tiles.inner, tiles.across * width));
  tiles.by_rows = divisor_of(std::int64_t{tiles.members} * tiles.down);
}

// Returns the cost in tiles: the tiles of the block with the most work, the sums of a run, which increase with the
// number of channels, and another access to memory if one block adds up for all.
double cost_of(const RingTiles& tiles) {
  const double sums = .2 + (tiles.inner == 1 ? tiles.local_channels / 160. : 0);
  return tiles.units * (tiles.each + sums) + (tiles.has_totals ? .6 : 0);
}

// Returns the tiles with the lowest cost; of several, the widest. Neighbouring threads read 128 bytes or more, so that
// accesses are coalesced. The table of a block has one entry per thread, which limits the number of channels.
std::optional<RingTiles> ring_tiles_of(const Launch& run, const LayerSchedule& schedule, std::int64_t blocks) {
  const ParamView& shift = shift_of(run);
  const int width = schedule.loop.width;
  const std::int64_t period = shift.inner * shift.count, rows = run.neurons / period, threads = schedule.block.threads;
  const std::int64_t line = std::max<std::int64_t>(128 / (width * size_of(run.type)), 1);
  std::optional<RingTiles> best;
  for (std::int64_t widest = std::min(period / width, threads); widest > 0; widest /= 2) {
    if (best && widest < line) break;
    const RingTiles found = ring_tiles_of(shift, rows, width, line, widest, threads, blocks);
    if (std::int64_t{found.units} * found.local_channels > threads) continue;
    if (!best || cost_of(found) < cost_of(*best)) best = found;
  }
  if (best) set_divisors(*best, width);
  return best;
}

// ---- schedules ----

// Returns the number of threads that share a byte of a row's bits, if rows are whole bytes. Strips have the same unit
// without bits, so that bits do not change the order of a sum.
std::int64_t unit_of(const BatchNormForward& layer, int width) {
  return std::gcd(period_of(layer.run) / width, std::max<std::int64_t>(8 / width, 1));
}
std::int64_t unit_of(const BatchNormBackward&, int /*width*/) { return 1; }

bool rows_aligned(const BatchNormForward& layer, int width) { return kernels::rows_aligned(layer.run, width); }
bool rows_aligned(const BatchNormBackward& layer, int width) {
  return kernels::rows_aligned(layer.sums, width) && kernels::rows_aligned(layer.gradient, width);
}

int code_of_a_step(const BatchNormForward& layer) { return layer.run.cell->forward_cost; }
int code_of_a_step(const BatchNormBackward& layer) {
  const Cell& cell = *layer.gradient.cell;
  return cell.forward_cost + cell.backward_cost;
}

// Threads of a block with a ring. With more threads, the additional waiting costs more than they gain (with 512,
// forward, T = 4, 5.6 passes of 13 MB become 7.1; backward, T = 16, 5.5 of 26 MB 5.8).
constexpr std::int64_t threads_of_ring = 384;

// Static shared memory of a block: publish_sums of cuda/layer/ring_of_tiles.cuh, and the table of batch_norm_ring.cuh,
// which has five rows in the backward pass and three in the forward pass.
constexpr std::size_t scratch_bytes(int width) {
  constexpr std::int64_t threads = threads_of_ring;
  return static_cast<std::size_t>(2 * width * (threads + 32 / width) + 2 * threads + 5 * threads) * sizeof(float);
}

std::int64_t bytes_of_x(const Launch& run) {
  return run.steps * run.neurons * static_cast<std::int64_t>(size_of(run.type));
}

// Returns the bytes of x up to which the backward pass stores x's gradient between its passes rather than run the loop
// twice. The part that does not fit the ring is written and read again, and has to fit the cache. Passes over x, T = 4,
// channels last, the loop twice and kept: float16 51 MB 6.3, 5.9; 206 MB 5.9, 6.3; float32 51 MB 5.4, 5.7 (an H200).
std::int64_t most_kept(DType type) { return size_of(type) == 2 ? 60'000'000 : 40'000'000; }

bool keeps_gradient(const BatchNormForward&) { return false; }
bool keeps_gradient(const BatchNormBackward& layer) {
  const SequenceView& upstream = layer.sums.grad_outputs[0];
  return upstream.data != nullptr && upstream.neuron_stride != 0 && layer.gradient.grad_inputs[0] != nullptr &&
         bytes_of_x(layer.sums) <= most_kept(layer.sums.type);
}

// True if data that is not kept for the second pass is evicted from the cache first. If only a small part of x could be
// kept, the backward pass is faster without it (206 MB of float16, T = 4: 6.0 passes, else 5.7; forward 3.2, else 3.3;
// 51 MB forward 3.0, else 3.3).
bool streams(const BatchNormForward&) { return true; }
bool streams(const BatchNormBackward& layer) { return bytes_of_x(layer.sums) <= 128'000'000; }

// Returns the maximum number of states that a thread stores in registers: those of all steps in the backward pass,
// which recomputes them (with 64, T = 16, 26 MB of float16 take 6.5 passes rather than 5.5).
std::int64_t most_states(const BatchNormForward& layer) { return layer.run.cell->states.size() <= 1 ? 64 : 32; }
std::int64_t most_states(const BatchNormBackward&) { return 32; }

// Returns the number of neighbouring threads that copy their rows together: 16 contiguous bytes at once, and at least
// one step each.
template <class Layer>
std::uint8_t team_of(const Layer& layer, const RingTiles& tiles, std::int64_t width, std::int64_t steps) {
  const Launch& run = first_loop(layer);
  const std::int64_t team = std::min(16 / (width * static_cast<std::int64_t>(size_of(run.type))), steps),
                     together = team * width;
  const bool is_whole = tiles.across % team == 0 && period_of(run) % together == 0;
  return is_whole && rows_aligned(layer, static_cast<int>(together)) ? static_cast<std::uint8_t>(team) : 1;
}

// Returns the neurons per thread: 16 bytes of a step, or less for long sequences, since the states stay in registers. 0
// if a step would be less than the 4 bytes that are copied at once.
template <class Layer> std::int64_t width_of_ring(const Layer& layer, std::int64_t steps) {
  constexpr int most_unrolled = 4000;
  const Launch& run = first_loop(layer);
  const auto size = static_cast<std::int64_t>(size_of(run.type));
  const std::int64_t states = std::max<std::int64_t>(static_cast<std::int64_t>(run.cell->states.size()), 1);
  std::int64_t width = (steps <= 4 ? 16 : 8) / size;
  const auto is_too_wide = [&] {
    return width * steps * states > most_states(layer) || width * steps * code_of_a_step(layer) > most_unrolled ||
           !rows_aligned(layer, static_cast<int>(width)) || period_of(run) % width != 0;
  };
  while (width > 1 && is_too_wide()) width /= 2;
  return width * size < 4 || is_too_wide() ? 0 : width;
}

// Chooses a ring of tiles, if a multiprocessor has space for two at least. Longer sequences, and cells with many
// states, run without a ring: one launch is still faster than separate statistics and loop (an H100, float16, forward
// and backward, 16 x 128 images of 28 x 28, T = 32: 461 us rather than 632; 14 x 14, T = 128: 355 rather than 624).
template <class Layer>
std::optional<LayerSchedule> with_ring(const Layer& layer, LayerSchedule schedule, const jit::Device& device) {
  constexpr std::size_t most_slots = 8, least_slots = 2;
  // Bytes in flight per multiprocessor: with more, requests wait and the multiprocessor idles (26 MB of float16, T = 4:
  // 8 tiles forward 3.5 passes, 4 3.3; 4 tiles backward 5.8, 2 5.5).
  constexpr std::size_t most_ahead = 98'304;
  constexpr std::int64_t most_in_cache = 32'000'000;  // bytes, of an L2 cache of 50 MB or more
  const Launch& run = first_loop(layer);
  const std::int64_t steps = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(run.steps)));
  const auto size = static_cast<std::int64_t>(size_of(run.type));
  if (device.major < 8 || compute_type(run.type) != DType::f32 || run.steps == 0 || run.neurons == 0 ||
      steps > std::min<std::int64_t>(16, run.checkpoint_length) || run.neurons < period_of(run))
    return std::nullopt;
  const std::int64_t width = width_of_ring(layer, steps);
  if (width == 0) return std::nullopt;
  const std::size_t slot = kinds_of_rows(layer) * static_cast<std::size_t>(steps * threads_of_ring * width * size);
  const std::size_t slots = std::min(
      (static_cast<std::size_t>(kernels::most_shared_bytes(device)) - scratch_bytes(static_cast<int>(width))) / slot,
      most_slots);
  if (slots < least_slots) return std::nullopt;
  Schedule& loop = schedule.loop;
  loop.width = static_cast<std::uint8_t>(width);
  loop.neighbours = true;
  loop.staged = false;
  loop.segments = 1;
  loop.rows = static_cast<std::uint8_t>(steps);
  loop.whole_stores = true;
  schedule.block = {.threads = threads_of_ring,
                    .slots = static_cast<std::uint8_t>(slots),
                    .ahead = static_cast<std::uint8_t>(std::clamp(most_ahead / slot, least_slots, slots)),
                    .steps = static_cast<std::uint8_t>(steps),
                    .is_exact = run.steps == steps,
                    .keeps = keeps_gradient(layer)};
  schedule.ring = ring_tiles_of(run, schedule, device.multiprocessors);
  if (!schedule.ring) return std::nullopt;
  RingTiles& tiles = *schedule.ring;
  tiles.kept = static_cast<int>(most_in_cache / (static_cast<std::int64_t>(slot) * blocks_of(tiles)));
  tiles.streams = streams(layer);
  schedule.block.team = team_of(layer, tiles, width, steps);
  return schedule;
}

template <class AnyLaunch> Schedule in_turns(const AnyLaunch& launch, const jit::Device& device) {
  Schedule schedule = kernels::schedule_of(launch, device.multiprocessors);
  schedule.in_turns = true;
  return schedule;
}

}  // namespace

unsigned blocks_of(const ChannelTiles& tiles) {
  return static_cast<unsigned>(divided(std::int64_t{tiles.strips} * tiles.depth, tiles.each));
}

unsigned blocks_of(const RingTiles& tiles) {
  return static_cast<unsigned>(tiles.strips_apart) * static_cast<unsigned>(tiles.members);
}

LayerSchedule schedule_of(const BatchNormForward& layer, const jit::Device& device) {
  const LayerSchedule schedule{.loop = in_turns(layer.run, device), .block = {}, .ring = {}};
  return with_ring(layer, schedule, device).value_or(schedule);
}

LayerSchedule schedule_of(const BatchNormBackward& layer, const jit::Device& device) {
  LayerSchedule schedule{.loop = in_turns(layer.sums, device), .block = {}, .ring = {}};
  Schedule& loop = schedule.loop;
  const Schedule second = in_turns(layer.gradient, device);
  loop.width = std::min(loop.width, second.width);
  loop.neighbours = loop.neighbours && second.neighbours;
  loop.segments = std::max(loop.segments, second.segments);
  loop.one_segment = 0 < layer.sums.steps && layer.sums.steps <= loop.checkpoint;
  if (const auto ring = with_ring(layer, schedule, device)) {
    schedule = *ring;
    loop.checkpoint = static_cast<std::uint8_t>(schedule.block.steps);
    loop.ragged = layer.sums.steps != schedule.block.steps;
    loop.one_segment = true;
  }
  return schedule;
}

std::size_t kinds_of_rows(const BatchNormForward&) { return 1; }
std::size_t kinds_of_rows(const BatchNormBackward& layer) {
  const auto is_read = [](const SequenceView& view) { return view.data != nullptr && view.neuron_stride != 0; };
  return layer.sums.inputs.size() + static_cast<std::size_t>(std::ranges::count_if(layer.sums.grad_outputs, is_read));
}

ChannelTiles channel_tiles_of(const BatchNormForward& layer, int width, std::int64_t blocks) {
  return tiles_of(layer.run, width, unit_of(layer, width), blocks);
}
ChannelTiles channel_tiles_of(const BatchNormBackward& layer, int width, std::int64_t blocks) {
  return tiles_of(layer.sums, width, unit_of(layer, width), blocks);
}

}  // namespace spikeforge::layers
