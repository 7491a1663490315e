#include "csrc/kernels/recurrent/spec.h"
#include "csrc/base/hash.h"
#include "csrc/codegen/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>

namespace spikeforge::kernels {
namespace {

// Returns the members of Geometry, in order.
std::array<int, 19> numbers_of(const recurrent::Geometry& g) {
  return {g.padded,       g.blocks,     g.tiles,           g.row,    g.split,    g.element,    g.sent,
          g.delay,        g.inputs,     g.outputs,         g.states, g.ahead,    g.checkpoint, g.history,
          g.coefficients, g.input_rows, g.state_gradients, g.apart,  g.by_memory};
}

// Returns a schedule for one neuron per lane. The loop over time differs, but the neurons of a lane are constructed one
// by one, as in a multistep loop of width 1.
Schedule one_neuron(const Launch& launch) {
  Schedule schedule;
  schedule.checkpoint = static_cast<std::uint8_t>(launch.checkpoint_length);
  return schedule;
}

bool results_aligned(std::span<void* const> results, std::size_t element, int lanes) {
  return std::ranges::all_of(results, [&](const void* p) { return aligned(p, 0, element, lanes); });
}

bool is_vectors(const RecurrentForwardLaunch& launch, int lanes) {
  const std::size_t element = size_of(launch.type), state = sizeof(float);
  return launch.recurrence.width % lanes == 0 && all_aligned(launch.inputs, element, lanes) &&
         results_aligned(launch.outputs, element, lanes) && aligned(launch.current, 0, element, lanes) &&
         results_aligned(launch.states, state, lanes) && aligned(launch.checkpoints, 0, state, lanes);
}

bool is_vectors(const RecurrentBackwardLaunch& launch, int lanes) {
  const std::size_t element = size_of(launch.type), state = sizeof(float);
  return launch.recurrence.width % lanes == 0 && all_aligned(launch.inputs, element, lanes) &&
         all_aligned(launch.grad_outputs, element, lanes) && results_aligned(launch.grad_inputs, element, lanes) &&
         all_aligned(launch.grad_states, state, lanes) && aligned(launch.checkpoints, 0, state, lanes);
}

template <class StepLaunch, class AnyLaunch>
RecurrentSpec make_spec(const AnyLaunch& launch, const recurrent::Geometry& geometry) {
  RecurrentSpec spec;
  spec.step = spec_of(static_cast<const StepLaunch&>(launch), one_neuron(launch));
  spec.step.loop.schedule.checkpoint = static_cast<std::uint8_t>(launch.checkpoint_length);
  for (Place& place : params_of(spec.step))  // the lanes of a warp are not neighbours here
    if (place.spread == Spread::by_warp) place.spread = Spread::by_channel;
  spec.geometry = geometry;
  spec.into = launch.recurrence.into;
  spec.vectors = is_vectors(launch, geometry.lane_neurons());
  return spec;
}

}  // namespace

bool RecurrentSpec::operator==(const RecurrentSpec& other) const {
  return step == other.step && numbers_of(geometry) == numbers_of(other.geometry) && into == other.into &&
         vectors == other.vectors && has_first == other.has_first;
}

std::size_t HashOfRecurrentSpec::operator()(const RecurrentSpec& spec) const {
  const auto numbers = numbers_of(spec.geometry);
  const std::size_t flags = 4 * spec.into + (spec.vectors ? 2 : 0) + (spec.has_first ? 1 : 0);
  return (HashOfSpec()(spec.step) * 31 + hash64(numbers.data(), sizeof numbers)) * 31 + flags;
}

RecurrentSpec spec_of(const RecurrentForwardLaunch& launch, const recurrent::Geometry& geometry) {
  RecurrentSpec spec = make_spec<ForwardLaunch>(launch, geometry);
  spec.step.loop.save = launch.current != nullptr;
  if (!spec.step.loop.save) spec.step.loop.schedule.checkpoint = 1;
  spec.has_first = launch.spikes.data != nullptr;
  return spec;
}

RecurrentSpec spec_of(const RecurrentBackwardLaunch& launch, const recurrent::Geometry& geometry) {
  return make_spec<BackwardLaunch>(launch, geometry);
}

jit::KernelSource print_source(const RecurrentSpec& spec) {
  const CellText cell = spec.step.cell->device_text(spec.step.loop.form);
  const bool forward = spec.step.loop.direction == Direction::forward;
  const char* const direction = forward ? "forward" : "backward";
  const char* const name = forward ? "Forward" : "Backward";
  const std::string args = fmt::format("spikeforge::Recurrent{}Args<spikeforge::Spec::Cell>", name);

  codegen::Lines members;
  members("  using Half = {};", spec.step.loop.type == DType::f16 ? "f16" : "bf16");
  members("  static constexpr recurrent::Geometry geometry = {{{}}};", fmt::join(numbers_of(spec.geometry), ", "));
  members("  static constexpr int into = {};", spec.into);
  members("  static constexpr bool vectors = {}, has_first = {};", spec.vectors, spec.has_first);

  codegen::Lines line;
  line("#include <spikeforge/cuda/recurrent/{}.cuh>", direction);
  line += print_loop(spec.step, cell, members.take());
  line("");
  line("extern \"C\" __global__ void __launch_bounds__({}, 1) spikeforge_recurrent_{}(", spec.geometry.block(),
       direction);
  line("    const __grid_constant__ {} args) {{", with_samples(args, spec.step.loop));
  line("  spikeforge::Recurrent{}<spikeforge::Spec>::{}(args);", name, direction);
  line("}}");
  return {.name = fmt::format("{}_recurrent_{}", cell.name, direction),
          .entry = fmt::format("spikeforge_recurrent_{}", direction),
          .text = line.take()};
}

}  // namespace spikeforge::kernels
