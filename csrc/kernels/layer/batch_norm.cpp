#include "csrc/kernels/layer/batch_norm.h"
#include "csrc/base/bounded_list.h"
#include "csrc/base/hash.h"
#include "csrc/codegen/lines.h"
#include "csrc/jit/recorder.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/layer/batch_norm_schedule.h"
#include "csrc/kernels/multistep/arguments.h"
#include "csrc/kernels/multistep/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace spikeforge::layers {
namespace {

using namespace kernels;

// Returns the number of sums per channel.
std::size_t sums_of(const BatchNormForward&) { return 2; }
std::size_t sums_of(const BatchNormBackward& layer) {
  const auto is_wanted = [](const void* grad) { return grad != nullptr; };
  return 2 + static_cast<std::size_t>(std::ranges::count_if(layer.sums.grad_params, is_wanted));
}

// True if a thread has the same channels and parameters in all its turns.
bool fits(const Launch& run, const Schedule& schedule) {
  constexpr std::int64_t most_neurons = std::int64_t{1}
                                        << 30;  // indices are int, and a strip may extend past the last neuron
  const ParamView& shift = shift_of(run);
  const std::int64_t period = period_of(run);
  const auto repeats = [&](const ParamView& param) {
    return param.data == nullptr || param.count == 1 || period % (param.inner * param.count) == 0;
  };
  return compute_type(run.type) == DType::f32 && run.steps > 0 && shift.count > 1 && period % schedule.width == 0 &&
         run.neurons <= most_neurons && schedule.neighbours && !schedule.staged && schedule.segments == 1 &&
         std::ranges::all_of(run.params, repeats);
}

struct ForwardSpec {
  KernelSpec run;
  Block block;
  bool operator==(const ForwardSpec&) const = default;
};
// The cell of the second loop is the first one's with_statistics, and its spec is derived from the first. The stored
// spec does not keep the cell alive.
struct BackwardSpec {
  KernelSpec sums, gradient;
  Block block;
  bool operator==(const BackwardSpec& other) const { return sums == other.sums && block == other.block; }
};
struct HashOfLayerSpec {
  std::size_t operator()(const ForwardSpec& spec) const { return of(spec.run, spec.block); }
  std::size_t operator()(const BackwardSpec& spec) const { return of(spec.sums, spec.block); }

 private:
  static std::size_t of(const KernelSpec& spec, const Block& block) {
    return HashOfSpec()(spec) * 31 + hash64(&block, sizeof block);
  }
};

ForwardSpec spec_of(const BatchNormForward& layer, const LayerSchedule& schedule) {
  return {kernels::spec_of(layer.run, schedule.loop), schedule.block};
}
// The launch of the first loop if it also computes x's gradient, to which the part of the statistics is then added.
class WithGradient {
 public:
  explicit WithGradient(const BatchNormBackward& layer) : launch(layer.sums) {
    for (void* const grad : launch.grad_inputs) grads_.push_back(grad);
    grads_.items()[0] = layer.gradient.grad_inputs[0];
    launch.grad_inputs = std::as_const(grads_).items();
    launch.any_grad_input = true;
  }
  WithGradient(const WithGradient&) = delete;
  WithGradient& operator=(const WithGradient&) = delete;
  BackwardLaunch launch;

 private:
  BoundedList<void*, graph::most_arguments> grads_;
};

BackwardSpec spec_of(const BatchNormBackward& layer, const LayerSchedule& schedule) {
  const WithGradient kept(layer);
  BackwardSpec spec{kernels::spec_of(schedule.block.keeps ? kept.launch : layer.sums, schedule.loop),
                    kernels::spec_of(layer.gradient, schedule.loop), schedule.block};
  const auto params = params_of(spec.sums);
  for (Place& place : params.last(2)) place.wanted = true;  // scale and shift
  spec.gradient.places.items().back().grad = GradKind::ones;
  return spec;
}

std::string print_gradient(const ForwardSpec&) { return {}; }
std::string print_gradient(const BackwardSpec& spec) {
  if (spec.block.keeps) return {};
  codegen::Lines line;
  // A separate namespace, since both loops declare the same names.
  line("namespace spikeforge::gradient {{");
  line += print_loop(spec.gradient, spec.gradient.cell->device_text(spec.gradient.loop.form));
  line("}}  // namespace spikeforge::gradient");
  line("");
  return line.take();
}

const KernelSpec& first_of(const ForwardSpec& spec) { return spec.run; }
const KernelSpec& first_of(const BackwardSpec& spec) { return spec.sums; }

// Prints a kernel that passes its arguments to a function of cuda/layer/batch_norm.cuh, instantiated for `specs`.
template <class Spec>
jit::KernelSource print_kernel(const Spec& spec, std::string_view suffix, std::string_view function,
                               std::string_view args, std::string_view specs) {
  const KernelSpec& first = first_of(spec);
  const CellText cell = first.cell->device_text(first.loop.form);
  const Block& block = spec.block;
  codegen::Lines line;
  const bool has_ring = block.slots > 0;
  line("#include <spikeforge/cuda/layer/{}.cuh>", has_ring ? "batch_norm_ring" : "batch_norm");
  line += print_loop(first, cell);
  line("");
  line += print_gradient(spec);
  if (has_ring) {
    line("struct Block {{");
    line("  static constexpr int threads = {}, slots = {}, ahead = {}, steps = {}, team = {};", block.threads,
         block.slots, block.ahead, block.steps, block.team);
    line("  static constexpr bool is_exact = {}, keeps = {};", block.is_exact, block.keeps);
    line("}};");
    line("");
  }
  const std::string_view room = has_ring ? "spikeforge::layers::ring" : "spikeforge::layers";
  line("extern \"C\" __global__ void __launch_bounds__({}{}) spikeforge_{}(", block.threads, has_ring ? ", 1" : "",
       function);
  line("    const __grid_constant__ {}::{}<{}> args) {{", room, args, specs);
  line("  {}::{}{}(args);", room, function, has_ring ? fmt::format("<{}, Block>", specs) : "");
  line("}}");
  return {
      .name = cell.name + std::string(suffix), .entry = fmt::format("spikeforge_{}", function), .text = line.take()};
}

jit::KernelSource print_source(const ForwardSpec& spec) {
  return print_kernel(spec, "_batch_norm", "normalise_and_run", "NormaliseAndRunArgs", "spikeforge::Spec");
}
jit::KernelSource print_source(const BackwardSpec& spec) {
  if (spec.block.keeps)
    return print_kernel(spec, "_batch_norm_grad", "normalise_and_run_grad_kept", "KeptGradArgs", "spikeforge::Spec");
  return print_kernel(spec, "_batch_norm_grad", "normalise_and_run_grad", "NormaliseAndRunGradArgs",
                      "spikeforge::Spec, spikeforge::gradient::spikeforge::Spec");
}

std::size_t partial_bytes(const ChannelTiles& tiles, std::size_t sums) {
  return sums * sizeof(float) * static_cast<std::size_t>(tiles.slots) * static_cast<std::size_t>(tiles.runs) *
         blocks_of(tiles);
}

std::size_t partial_bytes(const RingTiles& tiles, std::size_t sums) {
  const auto parts = static_cast<std::size_t>(tiles.local_channels) * static_cast<std::size_t>(tiles.strips) *
                     static_cast<std::size_t>(tiles.members);
  return sums * sizeof(float) * (parts + static_cast<std::size_t>(tiles.channels));
}

// Returns the weight of one element in its channel's mean.
double share_of_an_element(const Launch& run) {
  return static_cast<double>(shift_of(run).count) / (static_cast<double>(run.steps) * static_cast<double>(run.neurons));
}

// ---- arguments ----

template <class Tiles>
Arguments arguments_of(const BatchNormForward& layer, const Tiles& tiles, bool /*keeps*/, void* partial) {
  const ForwardLaunch& run = layer.run;
  NormaliseArguments<Tiles> norm{.tiles = tiles,
                                 .samples = {},
                                 .share = share_of_an_element(run),
                                 .eps = layer.eps,
                                 .weight = layer.weight,
                                 .bias = layer.bias,
                                 .partial = partial,
                                 .mean = layer.mean,
                                 .var = layer.var,
                                 .center = const_cast<void*>(run.params[run.params.size() - 3].data),
                                 .rstd = layer.rstd,
                                 .scale = const_cast<void*>(run.params[run.params.size() - 2].data),
                                 .shift = const_cast<void*>(shift_of(run).data),
                                 .running_mean = layer.running_mean,
                                 .running_var = layer.running_var,
                                 .batches = reinterpret_cast<long long*>(layer.batches),
                                 .momentum = layer.momentum.value_or(-1)};
  const std::int64_t rows = run.steps * tiles.rows;
  const std::pair<std::int64_t, std::int64_t> places[] = {
      {rows / 4, tiles.inner / 3}, {rows / 2, tiles.inner / 2}, {rows * 3 / 4, tiles.inner * 2 / 3}};
  for (std::size_t i = 0; i < std::size(places); ++i) {
    const auto [row, place] = places[i];
    norm.samples[i] = row / tiles.rows * run.inputs[0].time_stride + row % tiles.rows * tiles.period + place;
  }
  Arguments arguments(run, run.neurons);
  arguments.append(norm);
  return arguments;
}

template <class Tiles>
Arguments arguments_of(const BatchNormBackward& layer, const Tiles& tiles, bool keeps, void* partial) {
  const std::span<const ParamView> params = layer.gradient.params;
  const WithGradient kept(layer);
  Arguments arguments(keeps ? kept.launch : layer.sums, layer.sums.neurons);
  if (!keeps) arguments.append(Arguments(layer.gradient, layer.gradient.neurons));
  arguments.append(NormaliseGradArguments<Tiles>{.tiles = tiles,
                                                 .share = share_of_an_element(layer.sums),
                                                 .rstd = layer.rstd,
                                                 .scale = layer.sums.params[layer.sums.params.size() - 2].data,
                                                 .grad_mean = layer.grad_mean,
                                                 .grad_var = layer.grad_var,
                                                 .partial = partial,
                                                 .grad_weight = layer.grad_weight,
                                                 .grad_bias = layer.grad_bias,
                                                 .offset = const_cast<void*>(params[params.size() - 2].data),
                                                 .slope = const_cast<void*>(params.back().data)});
  return arguments;
}

// The kernels of a cell.
struct Kernels {
  jit::SpecTables<ForwardSpec, HashOfLayerSpec> forward;
  jit::SpecTables<BackwardSpec, HashOfLayerSpec> backward;
};
auto& tables_for(const ForwardSpec&, Kernels& kernels) { return kernels.forward; }
auto& tables_for(const BackwardSpec&, Kernels& kernels) { return kernels.backward; }

// Returns the dynamic shared memory of a block.
template <class Layer> std::size_t ring_bytes(const Layer& layer, const LayerSchedule& schedule) {
  const Block& block = schedule.block;
  return kinds_of_rows(layer) * block.slots * block.steps * block.threads * schedule.loop.width *
         static_cast<std::size_t>(size_of(first_loop(layer).type));
}

template <class Layer, class Tiles>
void launch_tiles(const Layer& layer, const jit::LoadedKernel& kernel, const Tiles& tiles, const Block& block,
                  std::size_t shared, void* stream, const Allocate& allocate) {
  const Arguments arguments = arguments_of(layer, tiles, block.keeps, allocate(partial_bytes(tiles, sums_of(layer))));
  kernel.launch_together(blocks_of(tiles), block.threads, static_cast<unsigned>(shared), stream, arguments.data());
}

bool fits(const BatchNormForward& layer, const LayerSchedule& schedule) { return fits(layer.run, schedule.loop); }

bool fits(const BatchNormBackward& layer, const LayerSchedule& schedule) {
  constexpr std::size_t most_sums = 8;  // 5 KB of shared memory each
  const std::span<const ParamView> params = layer.sums.params;
  for (std::size_t j = 0; j < params.size(); ++j) {
    const bool is_channels =
        params[j].count == 1 || (params[j].count == params.back().count && params[j].inner == params.back().inner);
    if (layer.sums.grad_params[j] != nullptr && !is_channels) return false;
  }
  return fits(layer.sums, schedule.loop) && sums_of(layer) <= most_sums;
}

template <class Layer>
bool launch_layer(const Layer& layer, const jit::Device& device, void* stream, const Allocate& allocate) {
  const Launch& run = first_loop(layer);
  const LayerSchedule schedule = schedule_of(layer, device);
  if (!fits(layer, schedule)) return false;
  const auto spec = spec_of(layer, schedule);
  Kernels& kernels = run.cell->layer_kernels.get<Kernels>([] { return Kernels(); });
  const jit::LoadedKernel& kernel = tables_for(spec, kernels).of(device).get(spec, device);
  const unsigned threads = schedule.block.threads;
  if (schedule.ring) {
    const std::size_t shared = ring_bytes(layer, schedule);
    kernel.allow_shared(static_cast<int>(shared), jit::Driver::get().device());  // the same for every launch
    launch_tiles(layer, kernel, *schedule.ring, schedule.block, shared, stream, allocate);
  } else {
    const std::int64_t blocks = kernel.blocks_at_once(threads) * std::int64_t{device.multiprocessors};
    const ChannelTiles tiles = channel_tiles_of(layer, schedule.loop.width, blocks);
    launch_tiles(layer, kernel, tiles, schedule.block, 0, stream, allocate);
  }
  return true;
}

}  // namespace

bool fits_one_launch(const BatchNormForward& layer, const jit::Device& device) {
  return fits(layer, schedule_of(layer, device));
}

bool fits_one_launch(const BatchNormBackward& layer, const jit::Device& device) {
  return fits(layer, schedule_of(layer, device));
}

// Returns the work that the launch includes. With a ring, a strip may have any width, so two threads cannot combine
// their bits into one byte: each thread must have whole bytes.
Included launch_includes(const BatchNormForward& layer, const jit::Device& device) {
  const LayerSchedule schedule = schedule_of(layer, device);
  const bool has_ring = schedule.block.slots > 0;
  const std::int64_t bits = layer.run.packed.bits;
  return {.moves_running = has_ring,
          .writes_bits = PackedOutput::has_whole_bytes(period_of(layer.run), bits) &&
                         (!has_ring || bits * schedule.loop.width >= 8)};
}

bool launch_batch_norm(const BatchNormForward& layer, const jit::Device& device, void* stream,
                       const Allocate& allocate) {
  return launch_layer(layer, device, stream, allocate);
}
bool launch_batch_norm(const BatchNormBackward& layer, const jit::Device& device, void* stream,
                       const Allocate& allocate) {
  return launch_layer(layer, device, stream, allocate);
}

void note(const BatchNormForward& layer) {
  ForwardLaunch without_bits = layer.run;
  without_bits.packed = {};
  const BatchNormForward packed_behind{.run = without_bits};
  jit::note([&](const jit::Device& device, const jit::Want& want) {
    const BatchNormForward& launched = launch_includes(layer, device).writes_bits ? layer : packed_behind;
    if (fits_one_launch(launched, device)) want(source_of(launched, device));
  });
}
void note(const BatchNormBackward& layer) {
  jit::note([&](const jit::Device& device, const jit::Want& want) {
    if (fits_one_launch(layer, device)) want(source_of(layer, device));
  });
}

jit::KernelSource source_of(const BatchNormForward& layer, const jit::Device& device) {
  return print_source(spec_of(layer, schedule_of(layer, device)));
}
jit::KernelSource source_of(const BatchNormBackward& layer, const jit::Device& device) {
  return print_source(spec_of(layer, schedule_of(layer, device)));
}

}  // namespace spikeforge::layers
