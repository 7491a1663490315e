#include "csrc/nir/network/restore.h"
#include "csrc/nir/error.h"
#include "csrc/nir/network/node_modules.h"
#include "csrc/nir/network/option_words.h"
#include "csrc/nir/network/tensor.h"
#include "csrc/nn/neurons.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/full.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sigmoid.h>

#include <algorithm>

namespace spikeforge::nir {
namespace {

constexpr const char* group_name = "spikeforge";

// --- Metadata

class Notes {
 public:
  explicit Notes(const Node& node) {
    const Member* member = node.metadata.find(group_name);
    group_ = member ? std::get_if<Group>(&member->value) : nullptr;
  }

  explicit operator bool() const { return group_; }

  const Array* array(std::string_view name) const { return get<Array>(name); }
  std::string text(std::string_view name) const {
    const Strings* strings = get<Strings>(name);
    return strings && strings->values.size() == 1 ? strings->values[0] : "";
  }
  std::optional<double> number(std::string_view name) const {
    const Array* value = array(name);
    return value && value->count() == 1 ? std::optional(value->at(0)) : std::nullopt;
  }
  bool flag(std::string_view name) const { return number(name).value_or(0) != 0; }
  template <class E, std::size_t N> std::optional<E> word(std::string_view name, const Word<E> (&words)[N]) const {
    const std::string given = text(name);
    for (const Word<E>& word : words)
      if (given == word.text) return word.value;
    return {};
  }
  const Member* learned() const { return group_ ? group_->find("learned") : nullptr; }
  std::optional<Surrogate> surrogate() const {
    Surrogate surrogate{text("surrogate")};
    if (surrogate.name.empty()) return {};
    if (const Array* args = array("surrogate_args"))
      for (std::int64_t i = 0; i < args->count(); ++i) surrogate.args.push_back(args->at(i));
    return surrogate;
  }

 private:
  template <class T> const T* get(std::string_view name) const {
    const Member* member = group_ ? group_->find(name) : nullptr;
    return member ? std::get_if<T>(&member->value) : nullptr;
  }

  const Group* group_;
};

void add(Group& group, const std::string& name, const std::string& text) {
  group.members.push_back({name, Strings::one(text)});
}
void add(Group& group, const std::string& name, bool flag) {
  group.members.push_back({name, Array::scalar(flag ? 1 : 0, DType::boolean)});
}
void add(Group& group, const std::string& name, const std::vector<double>& numbers) {
  if (numbers.empty()) return;
  group.members.push_back({name, Array::of<double>({static_cast<std::int64_t>(numbers.size())}, numbers)});
}
template <class E, std::size_t N> void add(Group& group, const std::string& name, E value, const Word<E> (&words)[N]) {
  for (const Word<E>& word : words)
    if (word.value == value) add(group, name, std::string(word.text));
}

// --- Constants of predefined neurons

at::Tensor as_double(const Param& param) {
  if (param.is_tensor()) return param.tensor().detach().to(c10::kCPU, c10::kDouble);
  return at::full({}, param.number(), c10::kDouble);
}

// The name of a constant and its current value in the module.
struct NamedConstant {
  std::string name;
  Param value;
  bool is_learned = false;
  nn::Bounds bounds;
};
using NamedConstants = std::vector<NamedConstant>;

void add_live(NamedConstants& constants, const torch::nn::Module& module, const std::string& name,
              const Param& initial) {
  NamedConstant constant{name, initial, /*is_learned=*/false, /*bounds=*/{}};
  const auto parameters = module.named_parameters(/*recurse=*/false), buffers = module.named_buffers(/*recurse=*/false);
  if (const at::Tensor* learned = parameters.find(name)) {
    const auto* neuron = dynamic_cast<const nn::NeuronModule*>(&module);
    constant.value = neuron != nullptr ? neuron->bounded(name, *learned) : Param(*learned);
    constant.is_learned = true;
    if (neuron != nullptr) constant.bounds = neuron->bounds_of(name);
  } else if (const at::Tensor* buffer = buffers.find(name)) {
    constant.value = *buffer;
  }
  constants.push_back(std::move(constant));
}

class Fields {
 public:
  Fields(const NamedConstants& constants, Shape shape, double dt)
      : constants_(constants), shape_(std::move(shape)), dt_(dt) {}

  at::Tensor operator()(std::string_view name) const {
    for (const NamedConstant& constant : constants_)
      if (constant.name == name) return as_double(constant.value);
    return at::full({}, 0, c10::kDouble);
  }
  Array array(const at::Tensor& value) const { return array_of(value.expand(shape_)); }
  Array array(double value) const { return Array::full(shape_, value); }

  IF node(const IFArguments&) const {
    return {array(1 / dt_), array((*this)("v_threshold")), array((*this)("v_reset"))};
  }
  LIF leaky(const at::Tensor& tau, bool decay_input) const {
    const at::Tensor reset = (*this)("v_reset");
    return {array(tau * dt_), decay_input ? array(1) : array(tau), array(reset), array((*this)("v_threshold")),
            array(reset)};
  }
  LIF node(const LIFArguments& call) const { return leaky((*this)("tau"), call.decay_input); }
  LIF node(const nn::PLIFCall& call) const {
    return leaky(at::reciprocal(at::sigmoid((*this)("w"))), call.decay_input);
  }
  CubaLIF node(const nn::CubaLIFCall& call) const {
    const LIF membrane = leaky((*this)("tau_membrane"), call.decay_input);
    const at::Tensor tau = (*this)("tau_synapse");
    return {array(tau * dt_),     membrane.tau,     membrane.r, membrane.v_leak,
            membrane.v_threshold, membrane.v_reset, array(tau)};
  }

 private:
  const NamedConstants& constants_;
  Shape shape_;
  double dt_;
};

void note(Group& notes, const NamedConstants& constants) {
  Strings learned;
  for (const NamedConstant& constant : constants) {
    notes.members.push_back({constant.name, array_of(as_double(constant.value))});
    if (constant.is_learned) learned.values.push_back(constant.name);
    if (constant.bounds.min) add(notes, constant.name + "_min", std::vector{*constant.bounds.min});
    if (constant.bounds.max) add(notes, constant.name + "_max", std::vector{*constant.bounds.max});
  }
  if (learned.values.empty()) return;
  learned.shape = {static_cast<std::int64_t>(learned.values.size())};
  notes.members.push_back({"learned", std::move(learned)});
}

template <class Options> NamedConstants constants_of(const nn::Predefined<Options>& neuron) {
  const auto& call = neuron.options().call();
  NamedConstants constants;
  for (const auto& [name, value] : call.constants()) add_live(constants, neuron, name, value);
  if (call.v_reset) add_live(constants, neuron, "v_reset", *call.v_reset);
  return constants;
}

template <class Options> Group notes_of(const char* name, const nn::Predefined<Options>& neuron) {
  const auto& call = neuron.options().call();
  if (!call.spiking) throw Error("", "", "a neuron with spiking(false) has no node in NIR");
  Group notes;
  add(notes, "module", std::string(name));
  note(notes, constants_of(neuron));
  if constexpr (requires { call.decay_input; }) add(notes, "decay_input", call.decay_input);
  add(notes, "detach_reset", call.detach_reset);
  add(notes, "strict", neuron.options().strict());
  add(notes, "surrogate", call.surrogate);
  add(notes, "surrogate_args", call.surrogate_args);
  return notes;
}

NamedConstants constants_of(const nn::NeuronImpl& neuron) {
  NamedConstants constants;
  for (const auto& [name, constant] : neuron.options().params()) add_live(constants, neuron, name, constant.value);
  return constants;
}

Group notes_of(const nn::LIImpl& neuron) {
  Group notes;
  add(notes, "module", std::string("LI"));
  note(notes, constants_of(neuron));
  add(notes, "decay_input", neuron.decay_input());
  return notes;
}

// Returns the options that differ from the defaults.
Group notes_of(const NodeNeuronImpl& neuron) {
  const CellOptions& cell = neuron.cell_options();
  const CellOptions defaults{cell.dt};
  Group notes;
  if (cell.reset != defaults.reset) add(notes, "reset", cell.reset, resets);
  if (cell.if_scaling != defaults.if_scaling) add(notes, "if_scaling", cell.if_scaling, if_scalings);
  if (cell.comparison != defaults.comparison) add(notes, "comparison", cell.comparison, comparisons);
  if (cell.cuba_current != defaults.cuba_current) add(notes, "cuba_current", cell.cuba_current, cuba_currents);
  if (cell.surrogate.name != defaults.surrogate.name || !cell.surrogate.args.empty()) {
    add(notes, "surrogate", cell.surrogate.name);
    add(notes, "surrogate_args", cell.surrogate.args);
  }
  return notes;
}

// Calls function(name in metadata, module) if the module is a neuron of spikeforge::nn, and returns its result.
template <class Function> auto with_neuron(const torch::nn::Module& module, Function&& function) {
  using Result = std::optional<decltype(function("", std::declval<const nn::IFImpl&>()))>;
  if (const auto* m = dynamic_cast<const nn::IFImpl*>(&module)) return Result(function("IF", *m));
  if (const auto* m = dynamic_cast<const nn::LIFImpl*>(&module)) return Result(function("LIF", *m));
  if (const auto* m = dynamic_cast<const nn::PLIFImpl*>(&module)) return Result(function("PLIF", *m));
  if (const auto* m = dynamic_cast<const nn::CubaLIFImpl*>(&module)) return Result(function("CubaLIF", *m));
  return Result();
}

Group metadata_with(Group notes) {
  Group metadata;
  if (!notes.empty()) metadata.members.push_back({group_name, std::move(notes)});
  return metadata;
}

template <class Options> void note_losses(const nn::Predefined<Options>& neuron, std::vector<std::string>& lost) {
  if (!neuron.options().call().v_reset) lost.emplace_back("soft reset, which others take for a reset to 0");
  if (!neuron.options().strict()) lost.emplace_back("firing at the threshold itself, where others fire above it");
  for (const NamedConstant& constant : constants_of(neuron))
    if (neuron.bounds_of(constant.name).any()) lost.emplace_back("bounds of learned constants");
}

LI leaky_integrator(const nn::LIImpl& neuron, const Shape& shape, double dt) {
  const NamedConstants constants = constants_of(neuron);
  const Fields fields(constants, shape, dt);
  return {fields.array(fields("tau") * dt), neuron.decay_input() ? fields.array(1) : fields.array(fields("tau")),
          fields.array(fields("v_rest"))};
}

// Returns the fields of a neuron that was imported from a NIR graph: its parameters. They are expanded to the whole
// shape for other readers, except w_in, for which all readers accept a single number.
Kind fields_of(const NodeNeuronImpl& neuron, const Shape& shape) {
  const NamedConstants constants = constants_of(neuron);
  const auto whole = [&](std::string_view field, const at::Tensor& value) {
    const bool stays = (field == "w_in" && value.numel() == 1) || !at::is_expandable_to(value.sizes(), shape);
    return array_of(stays ? value : value.expand(shape));
  };
  Kind kind = kind_named(neuron.type());
  set_arrays(kind, [&](std::string_view field) -> std::optional<Array> {
    const auto found = std::ranges::find(constants, field, &NamedConstant::name);
    if (found == constants.end()) return {};
    return whole(field, found->value.tensor());
  });
  return kind;
}

// --- From metadata to modules

std::optional<nn::Constant> constant(const Notes& notes, const std::string& name, const ModuleOptions& options) {
  const Array* array = notes.array(name);
  if (!array) return {};
  const at::Tensor value = tensor_of(*array, c10::kDouble);
  bool is_learned = false;
  if (const Member* member = notes.learned())
    if (const auto* names = std::get_if<Strings>(&member->value))
      is_learned = std::find(names->values.begin(), names->values.end(), name) != names->values.end();
  const auto type = nn::state_type(options.dtype);
  const bool is_number = value.dim() == 0;
  if (is_learned)
    return nn::Constant(nn::Learnable(value.to(options.device, type),
                                      {.min = notes.number(name + "_min"), .max = notes.number(name + "_max")}));
  if (is_number) return nn::Constant(value.item<double>());
  return nn::Constant(value.to(options.device, type));
}

template <class Options> void set(Options& to, const Notes& notes, const ModuleOptions& options) {
  const auto given = [&](const char* name, const auto& setter) {
    if (const auto value = constant(notes, name, options)) setter(*value);
  };
  given("v_threshold", [&](const nn::Constant& c) { to.v_threshold(c); });
  if constexpr (requires { to.w(0.0); }) given("w", [&](const nn::Constant& c) { to.w(c); });
  if constexpr (requires { to.tau_synapse(0.0); }) {
    given("tau_synapse", [&](const nn::Constant& c) { to.tau_synapse(c); });
    given("tau_membrane", [&](const nn::Constant& c) { to.tau_membrane(c); });
  } else if constexpr (requires { to.tau(0.0); }) {
    given("tau", [&](const nn::Constant& c) { to.tau(c); });
  }
  to.v_reset(constant(notes, "v_reset", options));
  if constexpr (requires { to.decay_input(true); }) to.decay_input(notes.flag("decay_input"));
  to.detach_reset(notes.flag("detach_reset")).strict(notes.flag("strict"));
  if (const auto surrogate = options.surrogate ? options.surrogate : notes.surrogate())
    to.surrogate(surrogate->name, surrogate->args);
}

template <class Module, class Options> nn::Part make(const Notes& notes, const ModuleOptions& options) {
  Options own;
  set(own, notes, options);
  return Module(own);
}

std::optional<nn::Part> remake(const Notes& notes, const ModuleOptions& options) {
  const std::string module = notes.text("module");
  if (module == "IF") return make<nn::IF, nn::IFOptions>(notes, options);
  if (module == "LIF") return make<nn::LIF, nn::LIFOptions>(notes, options);
  if (module == "PLIF") return make<nn::PLIF, nn::PLIFOptions>(notes, options);
  if (module == "CubaLIF") return make<nn::CubaLIF, nn::CubaLIFOptions>(notes, options);
  if (module != "LI") return {};
  nn::LIOptions own;
  if (const auto tau = constant(notes, "tau", options)) own.tau(*tau);
  if (const auto rest = constant(notes, "v_rest", options)) own.v_rest(*rest);
  return nn::LI(own.decay_input(notes.flag("decay_input")));
}

// Returns the node that is exported for the module in a node's metadata; std::nullopt without such metadata.
std::optional<Node> node_of_metadata(const Node& node, const Shape& shape, double dt) {
  // Uses float64, the type in the metadata: learned values and tensors would otherwise be rounded to the module's type.
  const auto module = neuron_of_metadata(node, {.dt = dt, .dtype = c10::kDouble});
  if (!module) return {};
  std::vector<std::string> lost;
  return node_of_neuron(*module->module(), shape, dt, lost);
}

}  // namespace

std::optional<Node> node_of_neuron(const torch::nn::Module& module, const Shape& shape, double dt,
                                   std::vector<std::string>& lost) {
  if (const auto* neuron = dynamic_cast<const NodeNeuronImpl*>(&module))
    return Node{fields_of(*neuron, shape), metadata_with(notes_of(*neuron))};
  if (const auto* neuron = dynamic_cast<const nn::LIImpl*>(&module))
    return Node{leaky_integrator(*neuron, shape, dt), metadata_with(notes_of(*neuron))};
  return with_neuron(module, [&](const char* name, const auto& neuron) {
    Group notes = notes_of(name, neuron);
    add(notes, "dt", std::vector{dt});
    note_losses(neuron, lost);
    const NamedConstants constants = constants_of(neuron);
    return Node{Fields(constants, shape, dt).node(neuron.options().call()), metadata_with(std::move(notes))};
  });
}

std::optional<Group> notes_of_neuron(const torch::nn::Module& module) {
  if (const auto* neuron = dynamic_cast<const NodeNeuronImpl*>(&module)) return notes_of(*neuron);
  if (const auto* neuron = dynamic_cast<const nn::LIImpl*>(&module)) return notes_of(*neuron);
  return with_neuron(module, [](const char* name, const auto& neuron) { return notes_of(name, neuron); });
}

std::optional<nn::Part> neuron_of_metadata(const Node& node, const ModuleOptions& options) {
  const Notes notes(node);
  if (!notes) return {};
  return remake(notes, options);
}

std::optional<double> dt_of_metadata(const Graph& graph) {
  for (const NamedNode& node : graph.nodes) {
    const Graph* const nested = std::get_if<Graph>(&node.node.kind);
    if (const auto dt = nested ? dt_of_metadata(*nested) : Notes(node.node).number("dt")) return dt;
  }
  return {};
}

Group without_notes(Group metadata) {
  std::erase_if(metadata.members, [](const Member& member) { return member.name == group_name; });
  return metadata;
}

RecurrentStart decide_start(const Node& node, const ModuleOptions& options) {
  const auto noted = Notes(node).word("recurrent_start", recurrent_starts);
  return options.recurrent_start.value_or(noted.value_or(RecurrentStart::zero));
}

void note_start(Node& node) {
  Group notes;
  add(notes, "recurrent_start", RecurrentStart::apply, recurrent_starts);
  const Group others = without_notes(std::move(node.metadata));
  node.metadata = metadata_with(std::move(notes));
  node.metadata.members.insert(node.metadata.members.end(), others.members.begin(), others.members.end());
}

CellOptions decide(const Node& node, const ModuleOptions& options) {
  const Notes notes(node);
  CellOptions decided{options.dt};
  const auto choose = [&](auto& field, const auto& option, const char* name, const auto& words) {
    if (option)
      field = *option;
    else if (const auto noted = notes.word(name, words))
      field = *noted;
  };
  choose(decided.reset, options.reset, "reset", resets);
  choose(decided.if_scaling, options.if_scaling, "if_scaling", if_scalings);
  choose(decided.comparison, options.comparison, "comparison", comparisons);
  choose(decided.cuba_current, options.cuba_current, "cuba_current", cuba_currents);
  if (const auto surrogate = options.surrogate ? options.surrogate : notes.surrogate()) decided.surrogate = *surrogate;
  return decided;
}

std::optional<nn::Part> restore(const Node& node, const Shape& shape, const ModuleOptions& options) {
  const Notes notes(node);
  const bool asks_otherwise = (options.reset && *options.reset != Reset::file) ||
                              (options.if_scaling && *options.if_scaling != IfScaling::ode) || options.comparison ||
                              options.cuba_current;
  if (!notes || asks_otherwise) return {};
  try {
    const auto exported = node_of_metadata(node, shape, options.dt);
    if (!exported || !(Node{exported->kind, {}} == Node{node.kind, {}})) return {};
    return remake(notes, options);
  } catch (const std::exception&) {  // invalid metadata
    return {};
  }
}

}  // namespace spikeforge::nir
