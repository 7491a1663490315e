#include <spikeforge/codegen/lines.h>
#include <spikeforge/jit/recorder.h>
#include <spikeforge/jit/spec_table.h>
#include <spikeforge/kernels/layer/batch_norm.h>
#include <spikeforge/kernels/multistep/arguments.h>
#include <spikeforge/kernels/multistep/schedule.h>
#include <spikeforge/kernels/multistep/spec.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

namespace spikeforge::layers {
namespace {

using namespace kernels;

constexpr std::int64_t block = 256;  // threads: block_of_tile of cuda/batch_norm.cuh

// The parameter whose channels are the layer's.
const ParamView& shift_of(const Launch& run) { return run.params.back(); }
// Neurons after which the channels are the same again.
std::int64_t period_of(const Launch& run) { return shift_of(run).inner * shift_of(run).count; }
const BackwardLaunch& first_loop(const BatchNormBackward& layer) { return layer.sums; }
const ForwardLaunch& first_loop(const BatchNormForward& layer) { return layer.run; }

template <class AnyLaunch>
Schedule in_turns(const AnyLaunch& launch, const jit::Device& device) {
  Schedule schedule = schedule_of(launch, device.multiprocessors);
  schedule.in_turns = true;
  return schedule;
}

Schedule schedule_of(const BatchNormForward& layer, const jit::Device& device) { return in_turns(layer.run, device); }

// One for both loops: a thread has the same neurons in both.
Schedule schedule_of(const BatchNormBackward& layer, const jit::Device& device) {
  Schedule schedule = in_turns(layer.sums, device);
  const Schedule second = in_turns(layer.gradient, device);
  schedule.width = std::min(schedule.width, second.width);
  schedule.neighbours = schedule.neighbours && second.neighbours;
  schedule.segments = std::max(schedule.segments, second.segments);
  schedule.one_segment = 0 < layer.sums.steps && layer.sums.steps <= schedule.checkpoint;
  return schedule;
}

// Of what a thread of so many neurons has of a row of bits.
std::int64_t threads_of_a_byte(const BatchNormForward& layer, int width) {
  const int bits = layer.run.packed.bits * width;
  return 0 < bits && bits < 8 ? 8 / bits : 1;
}
std::int64_t threads_of_a_byte(const BatchNormBackward&, int /*width*/) { return 1; }

// Of a channel.
std::size_t sums_of(const BatchNormForward&) { return 2; }
std::size_t sums_of(const BatchNormBackward& layer) {
  const auto is_wanted = [](const void* grad) { return grad != nullptr; };
  return 2 + static_cast<std::size_t>(std::ranges::count_if(layer.sums.grad_params, is_wanted));
}

// A thread keeps its channels, and the parameters of its first neurons, in all its turns.
bool fits(const Launch& run, const Schedule& schedule) {
  constexpr std::int64_t most_neurons = std::int64_t{1}
                                        << 30;  // indices are int, and a strip may reach beyond the last
  const std::int64_t period = period_of(run);
  const auto repeats = [&](const ParamView& param) {
    return param.data == nullptr || param.count == 1 || period % (param.inner * param.count) == 0;
  };
  return compute_type(run.type) == DType::f32 && run.steps > 0 && shift_of(run).count > 1 &&
         period % schedule.width == 0 && run.neurons <= most_neurons && schedule.neighbours && !schedule.staged &&
         schedule.segments == 1 && std::ranges::all_of(run.params, repeats);
}

struct ForwardSpec {
  KernelSpec run;
  bool operator==(const ForwardSpec&) const = default;
};
// The second loop's cell is the first one's with_statistics: all that its spec says follows from the first. What is
// kept of it does not keep the cell.
struct BackwardSpec {
  KernelSpec sums, gradient;
  bool operator==(const BackwardSpec& other) const { return sums == other.sums; }
};
struct HashOfLayerSpec {
  std::size_t operator()(const ForwardSpec& spec) const { return HashOfSpec()(spec.run); }
  std::size_t operator()(const BackwardSpec& spec) const { return HashOfSpec()(spec.sums); }
};

ForwardSpec spec_of(const BatchNormForward& layer, const jit::Device& device) {
  return {kernels::spec_of(layer.run, schedule_of(layer, device))};
}
BackwardSpec spec_of(const BatchNormBackward& layer, const jit::Device& device) {
  const Schedule schedule = schedule_of(layer, device);
  BackwardSpec spec{kernels::spec_of(layer.sums, schedule), kernels::spec_of(layer.gradient, schedule)};
  const auto params = params_of(spec.sums);
  for (Place& place : params.last(2)) place.wanted = true;  // scale and shift
  spec.gradient.places.items().back().grad = GradKind::ones;
  return spec;
}

jit::KernelSource print_source(const ForwardSpec& spec) {
  const CellText cell = spec.run.cell->device_text(spec.run.loop.form);
  codegen::Lines line;
  line("#include <spikeforge/cuda/batch_norm.cuh>");
  line += print_loop(spec.run, cell);
  line("");
  line("extern \"C\" __global__ void __launch_bounds__({}) spikeforge_normalise_and_run(", block);
  line("    const __grid_constant__ spikeforge::layers::NormaliseAndRunArgs<spikeforge::Spec> args) {{");
  line("  spikeforge::layers::normalise_and_run(args);");
  line("}}");
  return {.name = cell.name + "_batch_norm", .entry = "spikeforge_normalise_and_run", .text = line.take()};
}

jit::KernelSource print_source(const BackwardSpec& spec) {
  const CellText cell = spec.sums.cell->device_text(spec.sums.loop.form);
  codegen::Lines line;
  line("#include <spikeforge/cuda/batch_norm.cuh>");
  line += print_loop(spec.sums, cell);
  line("");
  // Both have the same names.
  line("namespace spikeforge::gradient {{");
  line += print_loop(spec.gradient, spec.gradient.cell->device_text(spec.gradient.loop.form));
  line("}}  // namespace spikeforge::gradient");
  line("");
  line("extern \"C\" __global__ void __launch_bounds__({}) spikeforge_normalise_and_run_grad(", block);
  line(
      "    const __grid_constant__ spikeforge::layers::NormaliseAndRunGradArgs<spikeforge::Spec, "
      "spikeforge::gradient::spikeforge::Spec> args) {{");
  line("  spikeforge::layers::normalise_and_run_grad(args);");
  line("}}");
  return {.name = cell.name + "_batch_norm_grad", .entry = "spikeforge_normalise_and_run_grad", .text = line.take()};
}

// ---- how blocks share the neurons ----

std::int64_t divided(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }  // rounded up

// Strips at most `widest` threads wide, and a multiple of `unit`. Blocks take tiles of one strip only, and some of them
// fewer; or all as many, some of them on in the next strip.
ChannelTiles tiles_of(const ParamView& shift, std::int64_t rows, int width, std::int64_t unit, std::int64_t widest,
                      std::int64_t blocks, bool of_one_strip) {
  constexpr std::int64_t most_for_itself = 8 * block;  // parts of sums
  const std::int64_t period = shift.inner * shift.count, columns = period / width;
  const std::int64_t strips = divided(columns, widest), across = divided(divided(columns, strips), unit) * unit;
  const std::int64_t down = std::min(block / across, rows), tiles = divided(rows, down);
  const std::int64_t each =
      of_one_strip ? divided(tiles, std::max<std::int64_t>(blocks / strips, 1)) : divided(strips * tiles, blocks);
  const std::int64_t depth = of_one_strip ? divided(tiles, each) * each : tiles;  // none is in what is beyond the rows
  // Of n things in a row, whole groups that begin anywhere in theirs.
  const auto touched = [](std::int64_t n, std::int64_t group) { return (n + group - 2) / group + 1; };
  const std::int64_t runs = of_one_strip ? 1 : touched(each, depth),
                     blocks_of_strip = of_one_strip ? depth / each : touched(depth, each), neurons = across * width;
  const std::int64_t slots = touched(neurons, shift.inner), strips_of_channel = touched(shift.inner, neurons);
  const auto of = [](std::int64_t number) { return static_cast<int>(number); };
  const auto threads = static_cast<std::uint64_t>(std::max<std::int64_t>(block / slots, 1));
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

unsigned blocks_of(const ChannelTiles& tiles) {
  return static_cast<unsigned>(divided(std::int64_t{tiles.strips} * tiles.depth, tiles.each));
}

// Threads beside each other read 32 or more neighbours, so that accesses are whole; where those share a channel, wider
// strips have fewer runs. The sums of a run take about as long as 3 tiles (an H200, images of 7 x 7 to 112 x 112).
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

std::size_t partial_bytes(const ChannelTiles& tiles, std::size_t sums) {
  return sums * sizeof(float) * static_cast<std::size_t>(tiles.slots) * static_cast<std::size_t>(tiles.runs) *
         blocks_of(tiles);
}

// Of an element in its channel.
double share_of_an_element(const Launch& run) {
  return static_cast<double>(shift_of(run).count) / (static_cast<double>(run.steps) * static_cast<double>(run.neurons));
}

// ---- arguments ----

Arguments arguments_of(const BatchNormForward& layer, const ChannelTiles& tiles, void* partial) {
  const ForwardLaunch& run = layer.run;
  NormaliseArguments norm{.tiles = tiles,
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
                          .shift = const_cast<void*>(shift_of(run).data)};
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

Arguments arguments_of(const BatchNormBackward& layer, const ChannelTiles& tiles, void* partial) {
  const std::span<const ParamView> params = layer.gradient.params;
  Arguments arguments(layer.sums, layer.sums.neurons);
  arguments.append(Arguments(layer.gradient, layer.gradient.neurons));
  arguments.append(NormaliseGradArguments{.tiles = tiles,
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

// Of a cell.
struct Kernels {
  jit::SpecTables<ForwardSpec, HashOfLayerSpec> forward;
  jit::SpecTables<BackwardSpec, HashOfLayerSpec> backward;
};
auto& tables_for(const ForwardSpec&, Kernels& kernels) { return kernels.forward; }
auto& tables_for(const BackwardSpec&, Kernels& kernels) { return kernels.backward; }

template <class Layer>
void launch_layer(const Layer& layer, const jit::Device& device, void* stream, const Allocate& allocate) {
  const Launch& run = first_loop(layer);
  const auto spec = spec_of(layer, device);
  Kernels& kernels = run.cell->layer_kernels.get<Kernels>([] { return Kernels(); });
  const jit::LoadedKernel& kernel = tables_for(spec, kernels).of(device).get(spec, device);
  const std::int64_t blocks = std::int64_t{kernel.blocks_at_once(block)} * device.multiprocessors;
  const int width = schedule_of(layer, device).width;
  const ChannelTiles tiles = tiles_of(run, width, threads_of_a_byte(layer, width), blocks);
  const Arguments arguments = arguments_of(layer, tiles, allocate(partial_bytes(tiles, sums_of(layer))));
  kernel.launch_together(blocks_of(tiles), block, 0, stream, arguments.data());
}

template <class Layer>
void note_layer(const Layer& layer) {
  jit::note([&](const jit::Device& device, const jit::Want& want) {
    if (fits_one_launch(layer, device)) want(source_of(layer, device));
  });
}

}  // namespace

bool fits_one_launch(const BatchNormForward& layer, const jit::Device& device) {
  const std::int64_t bits = layer.run.packed.bits;
  return fits(layer.run, schedule_of(layer, device)) && PackedOutput::has_whole_bytes(period_of(layer.run), bits);
}

bool fits_one_launch(const BatchNormBackward& layer, const jit::Device& device) {
  constexpr std::size_t most_sums = 8;  // 5 KB of shared memory each
  const std::span<const ParamView> params = layer.sums.params;
  for (std::size_t j = 0; j < params.size(); ++j) {
    const bool is_channels =
        params[j].count == 1 || (params[j].count == params.back().count && params[j].inner == params.back().inner);
    if (layer.sums.grad_params[j] != nullptr && !is_channels) return false;
  }
  return fits(layer.sums, schedule_of(layer, device)) && sums_of(layer) <= most_sums;
}

void launch(const BatchNormForward& layer, const jit::Device& device, void* stream, const Allocate& allocate) {
  launch_layer(layer, device, stream, allocate);
}
void launch(const BatchNormBackward& layer, const jit::Device& device, void* stream, const Allocate& allocate) {
  launch_layer(layer, device, stream, allocate);
}

void note(const BatchNormForward& layer) { note_layer(layer); }
void note(const BatchNormBackward& layer) { note_layer(layer); }

jit::KernelSource source_of(const BatchNormForward& layer, const jit::Device& device) {
  return print_source(spec_of(layer, device));
}
jit::KernelSource source_of(const BatchNormBackward& layer, const jit::Device& device) {
  return print_source(spec_of(layer, device));
}

}  // namespace spikeforge::layers
