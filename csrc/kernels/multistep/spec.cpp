#include "csrc/kernels/multistep/spec.h"
#include "csrc/base/hash.h"
#include "csrc/codegen/lines.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace spikeforge::kernels {
namespace {

const char* print(DType type) { return cuda_name(type); }

const char* print(Operand operand) {
  switch (operand) {
    case Operand::absent: return "Source::absent";
    case Operand::f16: return "Source::f16";
    case Operand::bf16: return "Source::bf16";
    case Operand::f32: return "Source::f32";
    case Operand::f64: return "Source::f64";
    case Operand::i32: return "Source::i32";
  }
  return "";
}

const char* print(Spread spread) {
  switch (spread) {
    case Spread::one: return "Spread::one";
    case Spread::by_warp: return "Spread::by_warp";
    case Spread::by_channel: return "Spread::by_channel";
    case Spread::by_neuron: return "Spread::by_neuron";
  }
  return "";
}

const char* print(bool value) { return value ? "true" : "false"; }

Operand operand_of(const void* data, DType type) {
  return data == nullptr ? Operand::absent : static_cast<Operand>(static_cast<int>(type) + 1);
}

// Returns the spread of a parameter. A scalar counts as one value per neuron, as its gradient does.
Spread spread_of(const ParamView& param, const Schedule& schedule, std::int64_t neurons) {
  if (param.data == nullptr) return Spread::by_neuron;
  if (param.count == 1) return Spread::one;
  if (shared_by_warps(param, schedule)) return Spread::by_warp;
  return param.count == neurons && param.inner == 1 ? Spread::by_neuron : Spread::by_channel;
}

bool has_channels(const Place& place) { return place.spread == Spread::by_warp || place.spread == Spread::by_channel; }

GradKind kind_of(const SequenceView& view) {
  if (view.data == nullptr) return GradKind::absent;
  return view.neuron_stride == 0 ? GradKind::one_element : GradKind::rows;
}

// The places of a spec or a const spec, by kind.
template <class Spec> struct PlacesOf {
  explicit PlacesOf(Spec& spec) {
    auto all = spec.places.items();
    const auto take = [&all](std::size_t count) {
      const auto first = all.first(count);
      all = all.subspan(count);
      return first;
    };
    inputs = take(spec.cell->inputs.size());
    states = take(spec.cell->states.size());
    params = take(spec.cell->params.size());
    outputs = take(spec.cell->outputs.size());
  }

  std::span<std::conditional_t<std::is_const_v<Spec>, const Place, Place>> inputs, states, params, outputs;
};

KernelSpec common_spec(Direction direction, const Launch& launch, const Schedule& schedule) {
  KernelSpec spec;
  spec.cell = launch.cell;
  spec.loop = {.direction = direction,
               .type = launch.type,
               .schedule = schedule,
               .store_states = launch.store_states,
               .has_lengths = launch.lengths.data != nullptr,
               .has_start = launch.start.data != nullptr,
               .draws = launch.cell->draws,
               .draws_in_order = launch.cell->draws && launch.draws.fast == 1 && launch.draws.first % 4 == 0,
               .form = launch.cell->canonical(launch.form)};
  for (std::size_t i = 0; i < launch.cell->inputs.size(); ++i) spec.places.push_back({});
  for (const StateView& state : launch.initial) spec.places.push_back({.operand = operand_of(state.data, state.type)});
  for (const ParamView& param : launch.params)
    spec.places.push_back(
        {.operand = operand_of(param.data, param.type), .spread = spread_of(param, schedule, launch.neurons)});
  for (std::size_t i = 0; i < launch.cell->outputs.size(); ++i) spec.places.push_back({});
  spec.loop.wide = launch.neurons > std::int64_t{std::numeric_limits<std::uint32_t>::max()} &&
                   std::ranges::any_of(spec.places.items(), has_channels);
  return spec;
}

// Prints a member function of the Spec that returns the value for a constant index. An array of all values takes NVRTC
// longer: NVRTC stores it in memory, and replaces its elements by constants only after it has unrolled the loops over
// indices. The most frequent value is last, after those that differ.
std::string table(std::string_view type, std::string_view name, const std::vector<std::string>& answers) {
  const auto count = [&](const std::string& answer) { return std::ranges::count(answers, answer); };
  const std::string& common = *std::ranges::max_element(answers, {}, count);
  std::string others;
  for (std::size_t i = 0; i < answers.size(); ++i)
    if (answers[i] != common) others += fmt::format("i == {} ? {} : ", i, answers[i]);
  return fmt::format("  static __device__ constexpr {} {}(int{}) {{ return {}{}; }}\n", type, name,
                     others.empty() ? "" : " i", others, common);
}

// Prints a table of the answers for the places. If there are none, it has the answer for a default place.
template <class Answer>
std::string lookup(std::string_view type, std::string_view name, std::span<const Place> places, Answer&& answer) {
  std::vector<std::string> answers;
  for (const Place& place : places) answers.emplace_back(print(answer(place)));
  if (places.empty()) answers.emplace_back(print(answer(Place{})));
  return table(type, name, answers);
}

// Prints the legal values of the parameters that are read from tensors: scalars are already checked.
std::string legal_values(std::span<const CellParam> params, std::span<const Place> places, DType arithmetic) {
  struct Rule {
    const char* checked;
    std::string least, most, poison;
  };
  std::vector<Rule> rules;
  const auto literal = [](double number) { return fmt::format("Compute({:.17g})", number); };
  for (std::size_t j = 0; j < params.size(); ++j) {
    const bool is_read = places[j].operand != Operand::absent;
    const bool is_bounded = params[j].legal != Legal::any && params[j].legal != Legal::unchecked;
    const LegalRange range = is_read && is_bounded ? params[j].range(arithmetic) : LegalRange{0, 0};
    const bool is_checked = is_read && params[j].is_checked();
    rules.push_back({!is_checked  ? "Legal::unchecked"
                     : is_bounded ? "Legal::bounded"
                                  : "Legal::any",
                     literal(range.least), literal(range.most), std::to_string(params[j].poison)});
  }
  if (rules.empty()) rules.push_back({"Legal::unchecked", "0", "0", "0"});
  const auto list = [&](std::string_view type, std::string_view name, const auto& text) {
    std::vector<std::string> answers;
    answers.reserve(rules.size());
    for (const Rule& rule : rules) answers.push_back(text(rule));
    return table(type, name, answers);
  };
  return list("Legal", "legal", [](const Rule& rule) { return std::string(rule.checked); }) +
         list("Compute", "least", [](const Rule& rule) { return rule.least; }) +
         list("Compute", "most", [](const Rule& rule) { return rule.most; }) +
         list("int", "poison", [](const Rule& rule) { return rule.poison; });
}

// True if a backward pass of one segment fits into the registers that blocks_of_one_segment leaves. Parameters per
// channel stay in registers: the six of QIF would spill 1200 bytes; with stored states, PLIF would spill 400 (float16,
// sm_90).
bool fits_one_segment(const KernelSpec& spec) {
  constexpr std::size_t most_params = 4;
  return spec.cell->params.size() <= most_params && !spec.loop.store_states;
}

}  // namespace

std::string print_members(const KernelSpec& spec, const CellText& cell) {
  const LoopSpec& loop = spec.loop;
  const Schedule& schedule = loop.schedule;
  const PlacesOf places(spec);
  const auto operand = [](const Place& place) { return place.operand; };
  const auto spread = [](const Place& place) { return place.spread; };
  const auto has = [](const Place& place) {
    return place.grad == GradKind::rows || place.grad == GradKind::one_element;
  };
  const auto one = [](const Place& place) { return place.grad == GradKind::one_element; };
  const auto ones = [](const Place& place) { return place.grad == GradKind::ones; };
  const auto wanted = [](const Place& place) { return place.wanted; };

  codegen::Lines line;
  line("  using Input = {};", print(loop.type));
  line("  using Compute = {};", print(compute_type(loop.type)));
  for (const std::string& type : cell.types) line("  using {};", type);
  line("  static constexpr int width = {}, rows = {}, checkpoint = {}, segments = {};", schedule.width, schedule.rows,
       schedule.checkpoint, schedule.segments);
  line("  static constexpr bool neighbours = {}, staged = {}, ragged = {}, in_turns = {}, one_segment = {};",
       schedule.neighbours, schedule.staged, schedule.ragged, schedule.in_turns, schedule.one_segment);
  line("  static constexpr int max_block = {}, packed_bits = {};", max_block_size(schedule), loop.packed_bits);
  line("  static constexpr bool save = {}, store_states = {}, wide = {};", loop.save, loop.store_states, loop.wide);
  if (schedule.whole_stores) line("  static constexpr bool whole_stores = true;");
  if (loop.draws) line("  static constexpr bool draws_in_order = {};", loop.draws_in_order);
  if (loop.has_lengths || loop.has_start)
    line("  static constexpr bool has_lengths = {}, has_start = {};", loop.has_lengths, loop.has_start);
  line += lookup("Source", "initial", places.states, operand);
  line += lookup("Source", "param", places.params, operand);
  line += lookup("Spread", "spread", places.params, spread);
  line += legal_values(spec.cell->params, places.params, compute_type(loop.type));
  line += lookup("bool", "has_grad_y", places.outputs, has);
  line += lookup("bool", "one_grad_y", places.outputs, one);
  line += lookup("bool", "ones_grad_y", places.outputs, ones);
  line += lookup("bool", "has_grad_state", places.states, has);
  line += lookup("bool", "one_grad_state", places.states, one);
  line += lookup("bool", "wants_grad_x", places.inputs, wanted);
  line += lookup("bool", "wants_grad_initial", places.states, wanted);
  line += lookup("bool", "wants_grad_param", places.params, wanted);
  return line.take();
}

std::size_t HashOfSpec::operator()(const KernelSpec& spec) const {
  static_assert(std::has_unique_object_representations_v<LoopSpec> && std::has_unique_object_representations_v<Place>,
                "equal specs must have equal bytes: no padding");
  return hash64(&spec.loop, sizeof spec.loop) * 31 + hash64(spec.places.data(), spec.places.size() * sizeof(Place));
}

std::span<Place> params_of(KernelSpec& spec) { return PlacesOf(spec).params; }

KernelSpec spec_of(const ForwardLaunch& launch, const Schedule& schedule) {
  KernelSpec spec = common_spec(Direction::forward, launch, schedule);
  spec.loop.save = launch.checkpoints != nullptr;
  spec.loop.packed_bits = launch.packed.bits;
  if (!spec.loop.save) spec.loop.schedule.checkpoint = 1;
  // A spiking forward pass has neither a surrogate nor a gradient to detach.
  spec.loop.form.detach_reset = false;
  if (spec.loop.form.spiking) {
    spec.loop.form.with_surrogate = false;
    spec.loop.form.surrogate = {};
  }
  return spec;
}

KernelSpec spec_of(const BackwardLaunch& launch, const Schedule& schedule) {
  KernelSpec spec = common_spec(Direction::backward, launch, schedule);
  const PlacesOf places(spec);
  for (std::size_t i = 0; i < places.inputs.size(); ++i) places.inputs[i].wanted = launch.grad_inputs[i] != nullptr;
  for (std::size_t i = 0; i < places.outputs.size(); ++i) places.outputs[i].grad = kind_of(launch.grad_outputs[i]);
  for (std::size_t s = 0; s < places.states.size(); ++s) {
    places.states[s].grad = kind_of(launch.grad_states[s]);
    places.states[s].wanted = launch.grad_initial[s] != nullptr;
  }
  for (std::size_t j = 0; j < places.params.size(); ++j) places.params[j].wanted = launch.grad_params[j] != nullptr;
  return spec;
}

std::string print_loop(const KernelSpec& spec, const CellText& cell, const std::string& more) {
  codegen::Lines line;
  line += cell.text;
  line("");
  line("namespace spikeforge {{");
  line("struct Spec {{");
  line += print_members(spec, cell);
  line += more;
  line("}};");
  line("}}  // namespace spikeforge");
  return line.take();
}

std::string with_samples(const std::string& args, const LoopSpec& loop) {
  return loop.has_lengths || loop.has_start ? fmt::format("spikeforge::WithSamples<{}>", args) : args;
}

std::string arguments_of(const LoopSpec& loop) {
  const std::string args =
      with_samples(fmt::format("spikeforge::{}<spikeforge::Spec::Cell>",
                               loop.direction == Direction::forward ? "ForwardArgs" : "BackwardArgs"),
                   loop);
  return loop.draws ? fmt::format("spikeforge::WithDraws<{}>", args) : args;
}

jit::KernelSource print_source(const KernelSpec& spec) {
  const Schedule& schedule = spec.loop.schedule;
  const bool is_forward = spec.loop.direction == Direction::forward;
  const char* const direction = is_forward ? "forward" : "backward";

  const CellText cell = spec.cell->device_text(spec.loop.form);

  codegen::Lines line;
  line("#include <spikeforge/cuda/multistep/multistep.cuh>");
  line += print_loop(spec, cell);
  line("");
  const bool has_bound = schedule.one_segment && fits_one_segment(spec);
  const char* const blocks = has_bound ? ", spikeforge::blocks_of_one_segment" : "";
  line("extern \"C\" __global__ void __launch_bounds__({}{}) spikeforge_{}(", max_block_size(schedule), blocks,
       direction);
  line("    const __grid_constant__ {} args) {{", arguments_of(spec.loop));
  line("  spikeforge::Multistep<spikeforge::Spec>::{}{}(args);", direction,
       schedule.segments > 1 ? "_time_parallel"
       : schedule.staged     ? "_staged"
                             : "");
  line("}}");
  return {.name = fmt::format("{}_{}", cell.name, direction),
          .entry = fmt::format("spikeforge_{}", direction),
          .text = line.take(),
          .options = {jit::minimal_language}};
}

}  // namespace spikeforge::kernels
