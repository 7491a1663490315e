#include <spikeforge/runtime/hash.h>
#include <spikeforge/runtime/kernel_spec.h>

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace spikeforge::runtime {
namespace {

struct Names {
  const char* name;
  const char* type;
  const char* header;
};

Names names(NeuronKind kind) {
  switch (kind) {
#define SPIKEFORGE_NEURON(name, Struct, header) \
  case NeuronKind::name:                        \
    return {#name, #Struct, header};
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
  }
  return {};
}

const char* surrogate_type(const KernelSpec& spec) {
  if (!spec.with_surrogate) return "NoSurrogate";
  switch (spec.surrogate) {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) \
  case SurrogateKind::name:                     \
    return #Struct;
#include <spikeforge/neuron/surrogate.def>
#undef SPIKEFORGE_SURROGATE
  }
  return "";
}

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
  }
  return "";
}

const char* print(bool value) { return value ? "true" : "false"; }

// A function of the Spec that looks its answer up by a constant index.
template <class Values, class Print>
std::string lookup(std::string_view type, std::string_view name, const Values& values, Print&& print) {
  std::string list;
  for (const auto& value : values) list += fmt::format("{}{}", list.empty() ? "" : ", ", print(value));
  return fmt::format(
      "  static __device__ constexpr {0} {1}(int i) {{\n    constexpr {0} values[] = {{{2}}};\n    return values[i];\n "
      " }}\n",
      type, name, list);
}

std::string print_options(const NeuronOptions& options) {
  return fmt::format("StaticOptions<{}, {}, {}, {}>", options.hard_reset, options.detach_reset, options.spiking,
                     options.decay_input);
}

MultistepLaunch canonical(const MultistepLaunch& launch) {
  MultistepLaunch result = launch;
  const bool reads_decay_input = launch.neuron == NeuronKind::lif || launch.neuron == NeuronKind::plif;
  if (!reads_decay_input) result.options.decay_input = true;
  return result;
}

KernelSpec common_spec(Direction direction, const MultistepLaunch& given, const Schedule& schedule) {
  const MultistepLaunch launch = canonical(given);
  KernelSpec spec;
  spec.direction = direction;
  spec.neuron = launch.neuron;
  spec.surrogate = launch.surrogate;
  spec.options = launch.options;
  spec.type = launch.type;
  spec.schedule = schedule;
  spec.store_states = launch.store_states;
  for (int s = 0; s < launch.n_states; ++s)
    if (launch.initial[s].data != nullptr) spec.initial[s] = operand(launch.initial[s].type);
  for (int j = 0; j < launch.n_params; ++j)
    if (launch.params[j].data != nullptr) {
      spec.params[j] = operand(launch.params[j].type);
      spec.shared_params[j] = shared_by_warps(launch.params[j], schedule);
    }
  return spec;
}

GradKind kind_of(const SequenceView& view) {
  if (view.data == nullptr) return GradKind::absent;
  return view.neuron_stride == 0 ? GradKind::one_element : GradKind::rows;
}

template <class T, std::size_t n>
std::size_t mix(std::size_t hash, const std::array<T, n>& values) {
  for (const T value : values) hash = hash * 31 + static_cast<std::size_t>(value);
  return hash;
}

}  // namespace

Operand operand(DType type) { return static_cast<Operand>(static_cast<int>(type) + 1); }

std::size_t HashOfSpec::operator()(const KernelSpec& spec) const {
  std::size_t hash = 17;
  const auto add = [&hash](auto value) { hash = hash * 31 + static_cast<std::size_t>(value); };
  add(spec.direction);
  add(spec.neuron);
  add(spec.surrogate);
  add(spec.with_surrogate);
  add(spec.options.hard_reset);
  add(spec.options.detach_reset);
  add(spec.options.spiking);
  add(spec.options.decay_input);
  add(spec.type);
  add(spec.schedule.width);
  add(spec.schedule.neighbours);
  add(spec.schedule.segments);
  add(spec.schedule.ragged);
  add(spec.schedule.rows);
  add(spec.schedule.staged);
  add(spec.schedule.checkpoint);
  add(spec.save);
  add(spec.store_states);
  add(spec.grad_spikes);
  add(spec.wants_grad_x);
  hash = mix(hash, spec.initial);
  hash = mix(hash, spec.params);
  hash = mix(hash, spec.shared_params);
  hash = mix(hash, spec.grad_states);
  hash = mix(hash, spec.wants_grad_initial);
  return mix(hash, spec.wants_grad_params);
}

KernelSpec forward_spec(const ForwardLaunch& launch, const Schedule& schedule) {
  KernelSpec spec = common_spec(Direction::forward, launch, schedule);
  spec.save = launch.checkpoints != nullptr;
  if (!spec.save) spec.schedule.checkpoint = 1;
  spec.options.detach_reset = false;
  if (spec.options.spiking) {
    spec.with_surrogate = false;
    spec.surrogate = {};
  }
  return spec;
}

KernelSpec backward_spec(const BackwardLaunch& launch, const Schedule& schedule) {
  KernelSpec spec = common_spec(Direction::backward, launch, schedule);
  spec.grad_spikes = kind_of(launch.grad_spikes);
  spec.wants_grad_x = launch.grad_x != nullptr;
  for (int s = 0; s < launch.n_states; ++s) {
    spec.grad_states[s] = kind_of(launch.grad_states[s]);
    spec.wants_grad_initial[s] = launch.grad_initial[s] != nullptr;
  }
  for (int j = 0; j < launch.n_params; ++j) spec.wants_grad_params[j] = launch.grad_params[j] != nullptr;
  return spec;
}

KernelSource print_source(const KernelSpec& spec) {
  const Names neuron = names(spec.neuron);
  const char* direction = spec.direction == Direction::forward ? "forward" : "backward";
  const char* args = spec.direction == Direction::forward ? "ForwardArgs" : "BackwardArgs";
  const auto has = [](GradKind kind) { return print(kind != GradKind::absent); };
  const auto one = [](GradKind kind) { return print(kind == GradKind::one_element); };
  const auto operand = [](Operand value) { return print(value); };
  const auto flag = [](bool value) { return print(value); };
  const std::array<GradKind, 1> grad_y{spec.grad_spikes};
  const std::array<bool, 1> wants_grad_x{spec.wants_grad_x};

  std::string text;
  const auto line = [&text]<class... Args>(fmt::format_string<Args...> format, Args&&... values) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(values)...);
    text += '\n';
  };
  line("#include <spikeforge/cuda/multistep.cuh>");
  line("#include <spikeforge/neuron/{}>", neuron.header);
  line("");
  line("namespace spikeforge {{");
  line("struct Spec {{");
  line("  using Input = {};", type_name(spec.type));
  line("  using Compute = {};", type_name(compute_type(spec.type)));
  line("  using Options = {};", print_options(spec.options));
  line("  using Neuron = {}<Compute, Options>;", neuron.type);
  line("  using Surrogate = {}<Compute>;", surrogate_type(spec));
  line("  using Cell = SpikingCell<Compute, Neuron, Surrogate, Options>;");
  line("  static constexpr int width = {}, rows = {}, checkpoint = {}, segments = {};", spec.schedule.width,
       spec.schedule.rows, spec.schedule.checkpoint, spec.schedule.segments);
  line("  static constexpr bool neighbours = {}, staged = {}, ragged = {};", spec.schedule.neighbours,
       spec.schedule.staged, spec.schedule.ragged);
  line("  static constexpr int max_block = {};", max_block_size(spec.schedule));
  line("  static constexpr bool save = {}, store_states = {};", spec.save, spec.store_states);
  text += lookup("Source", "initial", spec.initial, operand);
  text += lookup("Source", "param", spec.params, operand);
  text += lookup("bool", "shared", spec.shared_params, flag);
  text += lookup("bool", "has_grad_y", grad_y, has);
  text += lookup("bool", "one_grad_y", grad_y, one);
  text += lookup("bool", "has_grad_state", spec.grad_states, has);
  text += lookup("bool", "one_grad_state", spec.grad_states, one);
  text += lookup("bool", "wants_grad_x", wants_grad_x, flag);
  text += lookup("bool", "wants_grad_initial", spec.wants_grad_initial, flag);
  text += lookup("bool", "wants_grad_param", spec.wants_grad_params, flag);
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
  return {.name = fmt::format("{}_{}", neuron.name, direction),
          .entry = fmt::format("spikeforge_{}", direction),
          .text = std::move(text)};
}

}  // namespace spikeforge::runtime
