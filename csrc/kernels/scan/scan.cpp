#include "csrc/kernels/scan/scan.h"
#include "csrc/autodiff/affine.h"
#include "csrc/codegen/lines.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/multistep/arguments.h"
#include "csrc/kernels/multistep/plan.h"
#include "csrc/kernels/multistep/schedule.h"
#include "csrc/kernels/multistep/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge {

const TracedCell& composition_of(const TracedCell& cell) {
  return cell.composition.get<TracedCell>([&] {
    if (cell.states.empty() || cell.states.size() > most_scanned_states)
      throw graph::GraphError(fmt::format("a neuron with 1 to {} states is scanned, but {} has {}", most_scanned_states,
                                          cell.name, cell.states.size()));
    return TracedCell(graph::print(autodiff::composition(cell.graph)));
  });
}

namespace kernels {
namespace {

std::int64_t segment_of(const ForwardLaunch&, const Schedule& schedule) { return schedule.rows; }
std::int64_t segment_of(const BackwardLaunch&, const Schedule& schedule) { return schedule.checkpoint; }

template <class AnyLaunch> ScanPlan plan_of(const AnyLaunch& launch, const Schedule& schedule) {
  return {schedule, divided(launch.neurons, neurons_of_a_warp(schedule)),
          divided(launch.steps, segment_of(launch, schedule) * schedule.segments)};
}

std::size_t size_of_number(const Launch& launch) { return size_of(compute_type(launch.type)); }

// Returns the size of the map of a warp's neurons.
std::size_t bytes_of_map(const Launch& launch, const Schedule& schedule) {
  const std::size_t states = launch.cell->states.size();
  return states * (states + 1) * static_cast<std::size_t>(neurons_of_a_warp(schedule)) * size_of_number(launch);
}

// True if the map of each warp, and its part of the maps of other blocks, fit the 48 KiB of shared memory that every
// block may use.
bool fits_shared(const Launch& launch, const Schedule& schedule) {
  return 2 * schedule.segments * bytes_of_map(launch, schedule) <= 48 << 10;
}

// ---- the composition's launch, with the members that determine a kernel ----

class Composed {
 public:
  explicit Composed(const ForwardLaunch& launch)
      : cell_(composition_of(static_cast<const TracedCell&>(*launch.cell))),
        initial_(cell_.states.size()),
        none_(std::max(cell_.states.size(), cell_.outputs.size())),
        launch(launch) {
    this->launch.cell = &cell_;
    this->launch.initial = initial_;
    this->launch.outputs = std::span(none_).first(cell_.outputs.size());
    this->launch.states = std::span(none_).first(cell_.states.size());
    this->launch.checkpoints = nullptr;
    this->launch.store_states = false;
  }
  Composed(const Composed&) = delete;
  Composed& operator=(const Composed&) = delete;

 private:
  const TracedCell& cell_;
  std::vector<StateView> initial_;
  std::vector<void*> none_;

 public:
  ForwardLaunch launch;
};

// ---- specs ----

// The stored spec of the composition does not keep its cell alive.
struct ScanForwardSpec {
  KernelSpec run, composition;  // `composition` is derived from `run`
  bool operator==(const ScanForwardSpec& other) const { return run == other.run; }
};
struct ScanBackwardSpec {
  KernelSpec run;
  bool operator==(const ScanBackwardSpec&) const = default;
};
struct HashOfScanSpec {
  template <class Spec> std::size_t operator()(const Spec& spec) const { return HashOfSpec()(spec.run); }
};

ScanForwardSpec scan_spec(const ForwardLaunch& launch, const ScanPlan& plan) {
  return {spec_of(launch, plan.schedule), spec_of(Composed(launch).launch, plan.schedule)};
}
ScanBackwardSpec scan_spec(const BackwardLaunch& launch, const ScanPlan& plan) {
  return {spec_of(launch, plan.schedule)};
}

// Appends the end of a kernel to the text in `line`, and returns its source. `of` are the arguments of the template
// Scan or ScanBackward.
jit::KernelSource end_of_source(codegen::Lines& line, const KernelSpec& run, std::string_view scan, std::string_view of,
                                std::string_view direction) {
  const CellText cell = run.cell->device_text(run.loop.form);
  const std::string entry = fmt::format("spikeforge_scan_{}", direction);
  line("");
  line("extern \"C\" __global__ void __launch_bounds__({}) {}(", max_block_size(run.loop.schedule), entry);
  line("    const __grid_constant__ spikeforge::{}Args<spikeforge::Spec::Cell> args) {{", scan);
  line("  spikeforge::{}<{}>::{}(args);", scan, of, direction);
  line("}}");
  return {.name = fmt::format("{}_scan_{}", cell.name, direction), .entry = entry, .text = line.take()};
}

jit::KernelSource print_source(const ScanForwardSpec& spec) {
  codegen::Lines line;
  line("#include <spikeforge/cuda/scan/scan.cuh>");
  line += print_loop(spec.run, spec.run.cell->device_text(spec.run.loop.form));
  line("");
  // A separate namespace, since both loops declare the same names.
  line("namespace spikeforge::composition {{");
  line += print_loop(spec.composition, spec.composition.cell->device_text(spec.composition.loop.form));
  line("}}  // namespace spikeforge::composition");
  return end_of_source(line, spec.run, "Scan", "spikeforge::Spec, spikeforge::composition::spikeforge::Spec",
                       "forward");
}

jit::KernelSource print_source(const ScanBackwardSpec& spec) {
  codegen::Lines line;
  line("#include <spikeforge/cuda/scan/scan.cuh>");
  line += print_loop(spec.run, spec.run.cell->device_text(spec.run.loop.form));
  return end_of_source(line, spec.run, "ScanBackward", "spikeforge::Spec", "backward");
}

// ---- launches ----

struct Tables {  // for one cell
  jit::SpecTables<ScanForwardSpec, HashOfScanSpec> forward;
  jit::SpecTables<ScanBackwardSpec, HashOfScanSpec> backward;
};
auto& table_for(const ForwardLaunch&, Tables& tables) { return tables.forward; }
auto& table_for(const BackwardLaunch&, Tables& tables) { return tables.backward; }

// SharedMaps of cuda/scan/scan.cuh.
struct SharedMaps {
  void *maps, *sums;
  std::int64_t blocks;
};

std::size_t bytes_of_sums(const ForwardLaunch&, const ScanPlan&) { return 0; }
std::size_t bytes_of_sums(const BackwardLaunch& launch, const ScanPlan& plan) {
  if (!launch.any_grad_param) return 0;
  return launch.params.size() * neurons_of_a_warp(plan.schedule) * size_of_number(launch);
}

// Returns the number of blocks of the same neurons that are resident at once, or fewer if the number of turns stays the
// same.
std::int64_t blocks_of(const ScanPlan& plan, std::int64_t at_once) {
  static const int forced = override_of("SPIKEFORGE_SCAN_BLOCKS");
  std::int64_t blocks = std::clamp<std::int64_t>(at_once / plan.groups, 1, plan.tiles);
  if (forced != 0) blocks = std::min<std::int64_t>(blocks, forced);
  return divided(plan.tiles, divided(plan.tiles, blocks));
}

template <class AnyLaunch>
void launch_any(const AnyLaunch& launch, const ScanPlan& plan, const jit::Device& device, void* stream,
                const Allocate& allocate) {
  const auto spec = scan_spec(launch, plan);
  Tables& tables = launch.cell->scan_kernels.template get<Tables>([] { return Tables(); });
  const jit::LoadedKernel& kernel =
      table_for(launch, tables).of(device).get(spec, device, [&] { prepare_next(launch, device); });
  const unsigned block = max_block_size(plan.schedule);
  const std::int64_t blocks = blocks_of(plan, std::int64_t{kernel.blocks_at_once(block)} * device.multiprocessors);
  const auto all = static_cast<std::size_t>(plan.groups * blocks);
  // Maps of three turns; cuda/scan/scan.cuh explains why.
  const std::size_t of_maps = blocks == 1 ? 0 : 3 * all * bytes_of_map(launch, plan.schedule);
  const std::size_t of_sums = blocks == 1 ? 0 : all * bytes_of_sums(launch, plan);
  SharedMaps shared{nullptr, nullptr, blocks};
  if (of_maps > 0) {
    shared.maps = allocate(of_maps + of_sums);
    shared.sums = static_cast<char*>(shared.maps) + of_maps;
  }
  Arguments arguments(launch, launch.neurons);
  arguments.append(shared);
  if (blocks > 1) return kernel.launch_together(static_cast<unsigned>(all), block, 0, stream, arguments.data());
  kernel.launch({static_cast<unsigned>(all), 1, 1}, block, 0, stream, arguments.data(), arguments.bytes());
}

}  // namespace

// Returns std::nullopt also if the steps, including those of the blocks' next turns, exceed an int.
std::optional<ScanPlan> plan_scan(const ForwardLaunch& launch, int multiprocessors) {
  static const int forced = override_of("SPIKEFORGE_SCAN_BLOCKS");
  constexpr std::int64_t longest = std::int64_t{1} << 30, shortest = 512;
  if (!launch.scan || launch.steps > longest || launch.neurons == 0) return std::nullopt;
  // With more neurons, the loop fills the device: at T = 1024, it takes 1.99 of the bytes' time for 2^13 neurons.
  constexpr std::int64_t most_neurons = 64;  // per multiprocessor
  if (forced == 0 && (launch.steps < shortest || launch.neurons >= most_neurons * multiprocessors)) return std::nullopt;

  const auto& cell = static_cast<const TracedCell&>(*launch.cell);
  const TracedCell& composed = composition_of(cell);
  Schedule schedule;
  schedule.checkpoint = static_cast<std::uint8_t>(launch.checkpoint_length);
  schedule.rows = static_cast<std::uint8_t>(std::max<std::int64_t>(launch.checkpoint_length, 8));
  // A thread stores the inputs of its segment and of the next.
  const std::size_t inputs = 2 * cell.inputs.size() * schedule.rows * (launch.type == DType::f64 ? 2 : 1);
  constexpr std::size_t most_inputs = 128;  // registers
  constexpr int longest_unrolled = 5000;    // instructions
  const int cost = schedule.rows * (cell.forward_cost + composed.forward_cost);
  // With doubles, more inputs and states would spill.
  if (launch.type == DType::f64 && cell.states.size() * cell.inputs.size() > 4) return std::nullopt;
  if (inputs > most_inputs || cost > longest_unrolled || composed.is_too_long()) return std::nullopt;
  // With doubles or many inputs, a thread needs more registers than are available with 16 warps.
  schedule.segments = launch.type == DType::f64 || inputs > most_inputs / 2 ? 8 : 16;
  while (!fits_shared(launch, schedule)) schedule.segments /= 2;
  return plan_of(launch, schedule);
}

std::optional<ScanPlan> plan_scan(const BackwardLaunch& launch, int multiprocessors) {
  static const int forced = override_of("SPIKEFORGE_SCAN_BLOCKS");
  constexpr std::int64_t longest = std::int64_t{1} << 30;
  // A turn of a block takes about as long as the exchange between blocks.
  constexpr std::int64_t fewest = 4, widest = 4;
  if (launch.steps > longest || launch.neurons == 0 || launch.has_samples() || launch.cell->draws || forced == 1)
    return std::nullopt;
  const bool is_short = launch.steps < 2 * fewest * launch.checkpoint_length;
  if (forced == 0 && (is_short || launch.neurons * fewest > 32 * widest * multiprocessors)) return std::nullopt;
  Schedule schedule = schedule_of(launch, multiprocessors);
  // The maps of two states need more registers than are available with 16 warps (sm_100 and sm_120 would spill).
  if (launch.cell->states.size() > 1 && schedule.segments > 8) {
    schedule.segments = 8;
    schedule.ragged = launch.steps % (std::int64_t{schedule.checkpoint} * schedule.segments) != 0;
  }
  if (schedule.segments == 1 || !fits_shared(launch, schedule)) return std::nullopt;
  const ScanPlan plan = plan_of(launch, schedule);
  const std::int64_t blocks = std::min(plan.tiles, multiprocessors / plan.groups);
  if (blocks < (forced == 0 ? fewest : 2)) return std::nullopt;
  return plan;
}

jit::KernelSource print_scan(const ForwardLaunch& launch, const ScanPlan& plan) {
  return print_source(scan_spec(launch, plan));
}
jit::KernelSource print_scan(const BackwardLaunch& launch, const ScanPlan& plan) {
  return print_source(scan_spec(launch, plan));
}

void launch_scan(const ForwardLaunch& launch, const ScanPlan& plan, const jit::Device& device, void* stream,
                 const Allocate& allocate) {
  launch_any(launch, plan, device, stream, allocate);
}
void launch_scan(const BackwardLaunch& launch, const ScanPlan& plan, const jit::Device& device, void* stream,
                 const Allocate& allocate) {
  launch_any(launch, plan, device, stream, allocate);
}

}  // namespace kernels
}  // namespace spikeforge
