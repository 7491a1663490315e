#include <spikeforge/codegen/lines.h>
#include <spikeforge/runtime/loop_spec.h>

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace spikeforge::runtime {
namespace {

const char* type_name(DType type) {
  switch (type) {
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "float";
    case DType::f64:
      return "double";
    case DType::i32:
      return "int";
  }
  return "";
}

const char* print(Operand operand) {
  switch (operand) {
    case Operand::absent:
      return "Source::absent";
    case Operand::f16:
      return "Source::f16";
    case Operand::bf16:
      return "Source::bf16";
    case Operand::f32:
      return "Source::f32";
    case Operand::f64:
      return "Source::f64";
    case Operand::i32:
      return "Source::i32";
  }
  return "";
}

const char* print(bool value) { return value ? "true" : "false"; }

// A function of the Spec that looks its answer up by a constant index. Of no places, one that nothing is said of.
template <class Print>
std::string lookup(std::string_view type, std::string_view name, std::span<const Place> places, Print&& print) {
  std::string list;
  for (const Place& place : places) list += fmt::format("{}{}", list.empty() ? "" : ", ", print(place));
  if (places.empty()) list = print(Place{});
  return fmt::format(
      "  static __device__ constexpr {0} {1}(int i) {{\n    constexpr {0} values[] = {{{2}}};\n    return values[i];\n "
      " }}\n",
      type, name, list);
}

}  // namespace

Operand operand(DType type) { return static_cast<Operand>(static_cast<int>(type) + 1); }

GradKind kind_of(const SequenceView& view) {
  if (view.data == nullptr) return GradKind::absent;
  return view.neuron_stride == 0 ? GradKind::one_element : GradKind::rows;
}

KernelSource print_kernel(const LoopSpec& spec, const CellText& cell, const Places& places) {
  const char* direction = spec.direction == Direction::forward ? "forward" : "backward";
  const char* args = spec.direction == Direction::forward ? "ForwardArgs" : "BackwardArgs";
  const auto operand = [](const Place& place) { return print(place.operand); };
  const auto shared = [](const Place& place) { return print(place.shared); };
  const auto has = [](const Place& place) { return print(place.grad != GradKind::absent); };
  const auto one = [](const Place& place) { return print(place.grad == GradKind::one_element); };
  const auto wanted = [](const Place& place) { return print(place.wanted); };

  codegen::Lines line;
  line("#include <spikeforge/cuda/multistep.cuh>");
  line += cell.text;
  line("");
  line("namespace spikeforge {{");
  line("struct Spec {{");
  line("  using Input = {};", type_name(spec.type));
  line("  using Compute = {};", type_name(compute_type(spec.type)));
  for (const std::string& type : cell.types) line("  using {};", type);
  line("  static constexpr int width = {}, rows = {}, checkpoint = {}, segments = {};", spec.schedule.width,
       spec.schedule.rows, spec.schedule.checkpoint, spec.schedule.segments);
  line("  static constexpr bool neighbours = {}, staged = {}, ragged = {};", spec.schedule.neighbours,
       spec.schedule.staged, spec.schedule.ragged);
  line("  static constexpr int max_block = {};", max_block_size(spec.schedule));
  line("  static constexpr bool save = {}, store_states = {};", spec.save, spec.store_states);
  line += lookup("Source", "initial", places.states, operand);
  line += lookup("Source", "param", places.params, operand);
  line += lookup("bool", "shared", places.params, shared);
  line += lookup("bool", "has_grad_y", places.outputs, has);
  line += lookup("bool", "one_grad_y", places.outputs, one);
  line += lookup("bool", "has_grad_state", places.states, has);
  line += lookup("bool", "one_grad_state", places.states, one);
  line += lookup("bool", "wants_grad_x", places.inputs, wanted);
  line += lookup("bool", "wants_grad_initial", places.states, wanted);
  line += lookup("bool", "wants_grad_param", places.params, wanted);
  line("}};");
  line("}}  // namespace spikeforge");
  line("");
  line("extern \"C\" __global__ void __launch_bounds__({}) spikeforge_{}(", max_block_size(spec.schedule), direction);
  line("    const __grid_constant__ spikeforge::{}<spikeforge::Spec::Cell> args) {{", args);
  line("  spikeforge::Multistep<spikeforge::Spec>::{}{}(args);", direction,
       spec.schedule.segments > 1 ? "_time_parallel"
       : spec.schedule.staged     ? "_staged"
                                  : "");
  line("}}");
  return {.name = fmt::format("{}_{}", cell.name, direction),
          .entry = fmt::format("spikeforge_{}", direction),
          .text = line.take()};
}

}  // namespace spikeforge::runtime
