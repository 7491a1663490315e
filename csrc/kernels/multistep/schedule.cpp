#include "csrc/kernels/multistep/schedule.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>

namespace spikeforge::kernels {
namespace {

// All measurements below: an H200, LIF unless noted otherwise, the time of the kernel divided by the time to move its
// bytes. `benchmarks/schedule.py` repeats them.

// The properties of a cell that determine a schedule.
struct CellSize {
  int inputs, states, kept, forward_cost, backward_cost;
};

CellSize size_of_cell(const Launch& launch) {
  const Cell& cell = *launch.cell;
  // Functions of doubles are about four times as long.
  const int factor = launch.type == DType::f64 ? 4 : 1;
  return {.inputs = static_cast<int>(cell.inputs.size()),
          .states = static_cast<int>(cell.states.size()),
          .kept = cell.kept_values,
          .forward_cost = cell.forward_cost * factor,
          .backward_cost = cell.backward_cost * factor};
}

// The maximum number of instructions to which a traced cell's kernel is unrolled: NVRTC needs about a second for them.
// Longer code also has more live values than there are registers.
constexpr int most_unrolled = 2500;

// Returns the neurons per multiprocessor of the device.
std::int64_t load_of(const Launch& launch, int multiprocessors) {
  return launch.neurons / std::max(multiprocessors, 1);
}

// Returns the largest width with enough threads to hide the latency of their loads: 480 per multiprocessor for 4
// neurons, 240 for 2. Forward, T N = 2^25, widths 1, 2, 4: float32 N = 2^17 1.21, 1.09, -; 2^16 1.16, 1.13, -; 2^15
// 1.17, 1.22, -; float16 N = 2^18 1.58, 1.19, 1.16; 2^17 1.64, 1.22, 1.39; 2^16 1.52, 1.30, 1.98.
int choose_width(const Launch& launch, int widest, int narrowest, int multiprocessors) {
  static const int forced = override_of("SPIKEFORGE_VECTOR_WIDTH");
  const std::int64_t load = load_of(launch, multiprocessors);
  int width = static_cast<int>(std::bit_floor(static_cast<unsigned>(widest)));
  while (width > narrowest && load < (width == 4 ? 4 * 480 : 2 * 240)) width /= 2;
  if (forced != 0) width = forced;
  while (width > 1 && launch.neurons < 32 * width) width /= 2;
  return width;
}

// True if `width` neighbours always belong to one sample.
bool in_one_sample(const Launch& launch, int width) {
  const auto fits = [width](const auto& view) {
    return view.data == nullptr || view.count == 1 || view.inner % width == 0;
  };
  return fits(launch.lengths) && fits(launch.start);
}

// Sets the width. If there are samples, the neurons of a thread belong to one sample.
void set_width(Schedule& schedule, const auto& launch, int width) {
  if (launch.has_samples())
    while (width > 1 && !(rows_aligned(launch, width) && in_one_sample(launch, width))) width /= 2;
  schedule.width = static_cast<std::uint8_t>(width);
  schedule.neighbours = rows_aligned(launch, width);
}

int power_of_two_from(std::int64_t least, int most) {
  int power = 1;
  while (power < most && power < least) power *= 2;
  return power;
}

// Chooses the rows in flight: 32 KiB per multiprocessor, which is latency times bandwidth. Up to 16 rows are in
// registers, more in shared memory, of which a thread has 384 bytes. Forward, float32 with 16, 32 and 64 rows: T =
// 1024, N = 2^12 6.85, 3.93, 2.97; 2^13 3.80, 2.44, 1.99; 2^15 1.44, 1.20, 1.22; T = 100, N = 2^15 1.50, 1.20, 1.17; T
// = 512, N = 2^16 1.16, 1.19, 1.22; float16 T = 1024, N = 2^15 2.19, 1.55, 1.34.
void choose_rows(Schedule& schedule, const Launch& launch, const CellSize& cell, int multiprocessors) {
  static const int forced = override_of("SPIKEFORGE_PREFETCH");
  constexpr int rows_of_a_turn = 8, loops_of_turns = 3;  // Multistep::forward_staged
  const int step = schedule.width * cell.forward_cost;
  const int pack = static_cast<int>(size_of(launch.type)) * schedule.width;
  // Four floats per row (rows apart) with 8 rows spill in Izhikevich's kernel on sm_120.
  int most_in_registers = pack >= 16 ? 4 : 16;
  while (most_in_registers > 2 && 2 * most_in_registers * step > most_unrolled) most_in_registers /= 2;
  const std::int64_t row =
      std::max<std::int64_t>(load_of(launch, multiprocessors), 1) * cell.inputs * size_of(launch.type);
  int rows = std::max(8, power_of_two_from((32 * 1024 + row - 1) / row, 64));
  if (forced != 0) rows = forced;
  while (rows > most_in_registers && rows * pack * cell.inputs > 384) rows /= 2;
  // Copies to shared memory have 4, 8 or 16 bytes.
  schedule.staged = rows > 16 && launch.steps >= rows && schedule.neighbours && pack >= 4 &&
                    rows_of_a_turn * loops_of_turns * step <= most_unrolled && !launch.has_samples();
  if (!schedule.staged) rows = power_of_two_from(launch.steps, std::min(rows, most_in_registers));
  schedule.rows = static_cast<std::uint8_t>(rows);
}

// Returns the number of segments of the same neurons in a block; with 1, a thread walks over the whole sequence.
// Measurements (see the top of this file) of the backward pass with 1, 4, 8 and 16 segments: float32 T = 256, N = 2^17
// 1.07, 1.11, 1.12, -; T = 512, N = 2^16 1.19, 1.09, 1.10, -; T = 1024, N = 2^15 1.67, 1.06, 1.07, 1.55; 2^14 2.95,
// 1.38, 1.11, -; 2^12 10.8, 3.14, 2.07, 1.80; float16 2^15 3.17, 1.42, 1.55, -.
int segments_at_once(const Launch& launch, int segment, int multiprocessors) {
  // A warp processes 32 neurons at once. Doubles need too many registers for this number of threads.
  const std::int64_t load = load_of(launch, multiprocessors);
  if (load >= (launch.type == DType::f64 ? 100 : 640)) return 1;
  const int most = load >= 200 || launch.type == DType::f64 ? 4 : load >= 40 ? 8 : 16;
  return power_of_two_from((launch.steps + segment - 1) / segment, most);
}

// True for cells with one or two states, whose map over a segment is small, except for long cells: the vjp is unrolled
// again for each state and the constant, although the shared part of these passes is computed once.
bool can_be_time_parallel(const CellSize& cell, int segment, int width) {
  if (cell.states < 1 || cell.states > 2) return false;
  return segment * width * (cell.forward_cost + (cell.states + 2) * cell.backward_cost) <= 2 * most_unrolled;
}

// Returns the number of neurons after which all parameters repeat, or the number of all neurons, if that is more than
// half of them.
std::int64_t period_of(const Launch& launch) {
  std::int64_t period = 1;
  for (const ParamView& param : launch.params) {
    if (param.data == nullptr || param.count == 1) continue;
    // Both are at most N, and the period so far is at most N / 2, so the lcm does not overflow.
    period = std::lcm(period, param.inner * param.count);
    if (period > launch.neurons / 2) return launch.neurons;
  }
  return period;
}

bool any_by_channel(const Launch& launch) {
  return std::ranges::any_of(launch.params, [](const ParamView& p) { return p.data != nullptr && p.count > 1; });
}

// Returns the neurons of one turn, for a number of turns that leaves `blocks` blocks per multiprocessor. Batch norm and
// LIF, float16, T = 4, channels last, both backward passes in passes over x, with 2, 4, 8, 16 and 32 turns: N = 2^19.6
// 15.0, 13.0, 14.7, 18.2, -; N = 2^21.6 11.8, 9.2, 9.1, 8.2, 10.3; N = 2^24.6 10.0, 6.9, 6.3, 6.0, 5.9.
std::int64_t neurons_in_turns(const Launch& launch, const Schedule& schedule, int multiprocessors, int blocks) {
  static const int forced = override_of("SPIKEFORGE_TURNS");
  if (launch.neurons == 0) return 0;
  constexpr std::int64_t most_turns = 32;
  const std::int64_t at_least = std::int64_t{blocks} * multiprocessors * max_block_size(schedule) * schedule.width;
  const std::int64_t turns =
      forced != 0 ? forced : std::clamp<std::int64_t>((launch.neurons + at_least / 2) / at_least, 1, most_turns);
  const std::int64_t unit = std::lcm(period_of(launch), neurons_of_a_warp(schedule));
  return std::min(divided(divided(launch.neurons, turns), unit) * unit, launch.neurons);
}

}  // namespace

bool aligned(const void* data, std::int64_t time_stride, std::size_t element, int width) {
  const std::size_t bytes = element * static_cast<std::size_t>(width);
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0 && time_stride % width == 0;
}

bool all_aligned(std::span<const SequenceView> views, std::size_t element, int width) {
  return std::ranges::all_of(views, [&](const SequenceView& view) {
    return view.data == nullptr || view.neuron_stride == 0 || aligned(view.data, view.time_stride, element, width);
  });
}

// Results need no check: the operator allocates them with rows of N elements.
bool rows_aligned(const ForwardLaunch& launch, int width) {
  return launch.neurons % width == 0 && all_aligned(launch.inputs, size_of(launch.type), width);
}

bool rows_aligned(const BackwardLaunch& launch, int width) {
  const std::size_t element = size_of(launch.type), state = size_of(compute_type(launch.type));
  return launch.neurons % width == 0 && all_aligned(launch.inputs, element, width) &&
         all_aligned(launch.grad_outputs, element, width) && aligned(launch.checkpoints, 0, state, width) &&
         all_aligned(launch.grad_states, state, width);
}

Schedule schedule_of(const ForwardLaunch& launch, int multiprocessors) {
  const CellSize cell = size_of_cell(launch);
  Schedule schedule;
  int widest = static_cast<int>(8 / size_of(launch.type));  // 8 bytes
  // If the neurons of a thread are a warp apart, a larger width costs nothing: float32, T = 16, N = 2^22 + 1, widths 1,
  // 2, 4: 1.37, 1.25, 1.19.
  if (!rows_aligned(launch, widest)) widest = 4;
  // Four neighbours share a call of Philox.
  if (launch.cell->draws) widest = std::max(widest, 4);
  // Two half-precision numbers can be staged, one cannot.
  const int narrowest = size_of(launch.type) == 2 && rows_aligned(launch, 2) ? 2 : 1;
  int width = choose_width(launch, widest, narrowest, multiprocessors);
  while (width > 1 && 2 * 4 * width * cell.forward_cost > most_unrolled) width /= 2;
  set_width(schedule, launch, width);
  choose_rows(schedule, launch, cell, multiprocessors);
  schedule.checkpoint = static_cast<std::uint8_t>(launch.checkpoint_length);
  schedule.in_turns = neurons_at_once(launch, schedule, multiprocessors) < launch.neurons;
  return schedule;
}

Schedule schedule_of(const BackwardLaunch& launch, int multiprocessors) {
  static const int forced_segments = override_of("SPIKEFORGE_SEGMENTS");
  const CellSize cell = size_of_cell(launch);
  Schedule schedule;
  // Sequences shorter than a segment need no checkpoint, and a shorter segment leaves registers for more neurons.
  const int segment = power_of_two_from(launch.steps, static_cast<int>(launch.checkpoint_length));
  // 80 registers for kept values. A double needs two, and its exp and pow two more. Derivatives with respect to
  // parameters need one more value (sm_80, LIF: 2 neurons of 16 steps would spill).
  const int kept = std::max(cell.kept, 1) + (launch.any_grad_param ? 1 : 0);
  const int registers = segment * kept * (launch.type == DType::f64 ? 4 : 1);
  const bool half = size_of(launch.type) == 2;
  int width = choose_width(launch, std::clamp(80 / registers, half ? 2 : 1, 4), 1, multiprocessors);
  while (width > 1 && segment * width * (cell.forward_cost + cell.backward_cost) > most_unrolled) width /= 2;
  set_width(schedule, launch, width);
  int segments = segments_at_once(launch, segment, multiprocessors);
  if (forced_segments != 0) segments = forced_segments;
  if (!can_be_time_parallel(cell, segment, schedule.width)) segments = 1;
  schedule.segments = static_cast<std::uint8_t>(segments);
  schedule.checkpoint = static_cast<std::uint8_t>(segment);
  schedule.ragged = launch.lengths.data != nullptr || launch.steps % (segment * schedule.segments) != 0;
  schedule.one_segment = 0 < launch.steps && launch.steps <= segment;
  schedule.in_turns = neurons_at_once(launch, schedule, multiprocessors) < launch.neurons;
  schedule.one_segment = schedule.one_segment && schedule.in_turns;
  return schedule;
}

std::int64_t neurons_at_once(const ForwardLaunch& launch, const Schedule& schedule, int multiprocessors) {
  if (launch.has_samples() || launch.cell->draws || schedule.staged || !schedule.neighbours || !any_by_channel(launch))
    return launch.neurons;
  return neurons_in_turns(launch, schedule, multiprocessors, /*blocks=*/16);
}

std::int64_t neurons_at_once(const BackwardLaunch& launch, const Schedule& schedule, int multiprocessors) {
  // Sums of doubles over turns leave too few registers: plif would spill on sm_90.
  if (launch.has_samples() || launch.cell->draws || schedule.segments > 1 || !schedule.neighbours ||
      launch.type == DType::f64 || !(launch.any_grad_param || any_by_channel(launch)))
    return launch.neurons;
  return neurons_in_turns(launch, schedule, multiprocessors, /*blocks=*/schedule.one_segment ? 3 : 6);
}

bool shared_by_warps(const ParamView& param, const Schedule& schedule) {
  return param.data != nullptr && (param.count == 1 || param.inner % neurons_of_a_warp(schedule) == 0);
}

unsigned max_block_size(const Schedule& schedule) { return schedule.segments > 1 ? 32u * schedule.segments : 128u; }

Grid grid_of(const Schedule& schedule, std::int64_t neurons, int multiprocessors) {
  unsigned block = max_block_size(schedule);
  if (schedule.segments > 1) return {divided(neurons, 32 * schedule.width), block};
  const std::int64_t threads =
      schedule.neighbours ? divided(neurons, schedule.width) : divided(neurons, 32 * schedule.width) * 32;
  // Uses smaller blocks if there would be fewer blocks than multiprocessors.
  while (block > 32 && threads / block < multiprocessors) block /= 2;
  return {divided(threads, block), block};
}

}  // namespace spikeforge::kernels
