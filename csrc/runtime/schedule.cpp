#include <spikeforge/runtime/environment.h>
#include <spikeforge/runtime/schedule.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace spikeforge::runtime {
namespace {

// For tests and experiments: SPIKEFORGE_VECTOR_WIDTH, SPIKEFORGE_PREFETCH and SPIKEFORGE_CHECKPOINT override what is
// chosen here.
int override_of(const char* name) {
  const char* text = std::getenv(name);
  const int value = text ? std::atoi(text) : 0;
  return value > 0 && value <= 64 && std::has_single_bit(static_cast<unsigned>(value)) ? value : 0;
}

bool aligned(const void* data, std::int64_t time_stride, std::size_t element, int width) {
  const std::size_t bytes = element * static_cast<std::size_t>(width);
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0 && time_stride % width == 0;
}

bool readable_at(const SequenceView& view, std::size_t element, int width) {
  return view.data == nullptr || view.neuron_stride == 0 || aligned(view.data, view.time_stride, element, width);
}

// A width is possible where every row starts at a multiple of it. Results are allocated by us, with rows of N elements.
bool possible(const MultistepLaunch& launch, int width) {
  return launch.neurons % width == 0 && readable_at(launch.x, size_of(launch.type), width);
}

bool possible(const BackwardLaunch& launch, int width) {
  if (!possible(static_cast<const MultistepLaunch&>(launch), width)) return false;
  if (!readable_at(launch.grad_spikes, size_of(launch.type), width)) return false;
  if (!aligned(launch.checkpoints, 0, size_of(compute_type(launch.type)), width)) return false;
  return std::all_of(launch.grad_states.begin(), launch.grad_states.end(), [&](const SequenceView& view) {
    return readable_at(view, size_of(compute_type(launch.type)), width);
  });
}

// The widest of {4, 2, 1} that leaves about 1000 threads a multiprocessor: fewer cannot hide the latency of their
// loads.
template <class Launch>
int choose_width(const Launch& launch, int widest, int multiprocessors) {
  static const int forced = override_of("SPIKEFORGE_VECTOR_WIDTH");
  if (forced != 0) widest = forced;
  for (int width = widest; width > 1; width /= 2)
    if (possible(launch, width) && (forced != 0 || launch.neurons / width >= std::int64_t{1000} * multiprocessors))
      return width;
  return 1;
}

int shortest_power_of_two_above(std::int64_t steps, int most) {
  int length = 1;
  while (length < most && length < steps) length *= 2;
  return length;
}

}  // namespace

std::int64_t checkpoint_length(DType type, int n_states) {
  static const int forced = override_of("SPIKEFORGE_CHECKPOINT");
  if (forced != 0) return forced;
  // A segment of the backward pass is held in registers: x, the gradient and the state of each of its steps. Training
  // over the bytes that must move, LIF, T = 32, N = 2^22, on an H200 for lengths of 8, 16, 32:
  // float32 1.09, 1.06, 1.10; float16 1.32, 1.87, 1.87.
  const int length = type == DType::f32 ? 16 : 8;
  return length / n_states;
}

Schedule forward_schedule(const ForwardLaunch& launch, int multiprocessors) {
  static const int forced_rows = override_of("SPIKEFORGE_PREFETCH");
  Schedule schedule;
  schedule.width = static_cast<std::uint8_t>(choose_width(launch, launch.type == DType::f64 ? 2 : 4, multiprocessors));
  const int most_rows = forced_rows != 0 ? forced_rows : schedule.width == 4 ? 4 : schedule.width == 2 ? 8 : 16;
  schedule.rows = static_cast<std::uint8_t>(shortest_power_of_two_above(launch.steps, most_rows));
  schedule.checkpoint = static_cast<std::uint8_t>(launch.checkpoint_length);
  return schedule;
}

Schedule backward_schedule(const BackwardLaunch& launch, int multiprocessors) {
  Schedule schedule;
  // Shorter sequences than a segment need no checkpoint, and a shorter segment leaves room for a wider load.
  const int segment = shortest_power_of_two_above(launch.steps, static_cast<int>(launch.checkpoint_length));
  // Doubles take two registers each, and twice as many again in exp and pow.
  const int registers = segment * launch.n_states * (launch.type == DType::f64 ? 4 : 1);
  schedule.width = static_cast<std::uint8_t>(choose_width(launch, std::clamp(32 / registers, 1, 4), multiprocessors));
  schedule.rows = 1;
  schedule.checkpoint = static_cast<std::uint8_t>(segment);
  return schedule;
}

unsigned block_size(std::int64_t threads, int multiprocessors) {
  unsigned block = max_block_size;
  while (block > 32 && threads / block < multiprocessors) block /= 2;
  return block;
}

}  // namespace spikeforge::runtime
