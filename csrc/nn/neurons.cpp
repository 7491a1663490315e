#include "csrc/nn/neurons.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/written_step.h"
#include "csrc/nn/internal/run_script.h"
#include "csrc/nn/internal/scoped_samples.h"
#include "ops/common/checks.h"
#include "ops/multistep/surrogate.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <ostream>
#include <string_view>

namespace spikeforge::nn {

// A predefined neuron and one call of it.
struct Described {
  const char* module;
  const char* op;  // in torch.ops.spikeforge, or cuba_lif, which has no operator
  Names states;
  std::vector<std::pair<const char*, Param>> constants;  // but v_reset
};

namespace {

template <class Call> Described describe(const Call& call) {
  const NeuronRow& row = neuron_row(Call::kind);
  return {row.type, row.name, {row.states.begin(), row.states.end()}, call.constants()};
}
Described describe(const CubaLIFCall& call) { return {"CubaLIF", "cuba_lif", {"v", "i"}, call.constants()}; }

// Returns all constants by name, v_reset last.
template <class Call> std::vector<std::pair<const char*, Param>> constants_of(const Call& call) {
  auto constants = describe(call).constants;
  if (call.v_reset) constants.emplace_back("v_reset", *call.v_reset);
  return constants;
}

// Returns the initial value of each state: v at v_reset, or 0 under soft reset; w at w_rest; others at 0.
template <class Call> std::vector<Param> starts_of(const Call& call, std::size_t states) {
  std::vector<Param> starts(states, Param(0.0));
  if (call.v_reset) starts[0] = *call.v_reset;
  if constexpr (requires { call.w_rest; }) starts[1] = call.w_rest;
  return starts;
}

// Returns the tensors among the constants.
template <class Call> Tensors tensors_of(const Call& call) {
  Tensors tensors;
  for (const auto& [name, param] : constants_of(call))
    if (param.is_tensor()) tensors.push_back(param.tensor());
  return tensors;
}

at::Tensor spread(const at::Tensor& x, const Param& value) {
  const auto options = x.options().dtype(state_type(x.scalar_type()));
  if (!value.is_tensor()) return at::full(x.sizes().slice(1), value.number(), options);
  return value.tensor().to(options).expand(x.sizes().slice(1));
}

template <class Call> Tensors initial(const at::Tensor& x, const Tensors& states, const Call& call) {
  const std::vector<Param> starts = starts_of(call, states.size());
  Tensors all = states;
  for (std::size_t s = 0; s < all.size(); ++s)
    if (!all[s].defined()) all[s] = spread(x, starts[s]);
  return all;
}

const CellParam& param_of(std::string_view neuron, std::string_view name) {
  for (const NeuronKind kind : all_neurons)
    if (const PredefinedCell& cell = predefined_cell(kind); cell.name == neuron)
      for (const CellParam& param : cell.params)
        if (param.name == name) return param;
  TORCH_INTERNAL_ASSERT(false, neuron, " has no constant ", name);
}

template <class Call> bool starts_at_numbers(const Call& call, std::size_t states) {
  return std::ranges::none_of(starts_of(call, states), &Param::is_tensor);
}

// Returns the neuron as a traced cell, which fires if H > v_threshold under `strict`. Its parameters are
// tensors_of(call); scalars are constants of the cell. Throws c10::ValueError for illegal scalars and surrogates, and
// without `spiking`.
template <class Call> spikeforge::Neuron traced_cell(const Call& call, bool strict) {
  const Described neuron = describe(call);
  for (const auto& [name, param] : neuron.constants) {
    if (param.is_tensor()) continue;
    if constexpr (!std::is_same_v<Call, CubaLIFCall>)
      ops::check_number(neuron.module, param_of(neuron.op, name), param.number());
    else if (std::string_view(name).starts_with("tau"))
      ops::check_positive(neuron.module, name, param.number());
  }
  TORCH_CHECK_VALUE(call.spiking, neuron.module, ": as a traced cell it needs spiking(true)");
  const ops::Surrogate parsed = ops::parse_surrogate(neuron.module, call.surrogate, call.surrogate_args);

  NeuronDescription described{.neuron = neuron.op,
                              .name = neuron.module,
                              .spike = std::string(strict ? "spike_strict" : "spike") + "(u, " +
                                       graph::text_of(graph::Surrogate{parsed.kind, parsed.args}) + ")",
                              .params = {},
                              .numbers = {},
                              .detach_reset = call.detach_reset};
  if constexpr (requires { call.decay_input; }) described.decay_input = call.decay_input;
  for (const auto& [name, param] : constants_of(call))
    if (param.is_tensor())
      described.params.emplace_back(name);
    else
      described.numbers.emplace_back(name, param.number());
  return spikeforge::Neuron(trace_neuron(described));
}

template <class Options> constexpr bool is_always_traced = std::is_same_v<Options, CubaLIFOptions>;

}  // namespace

Constant learned_from_tau(double tau) {
  TORCH_CHECK_VALUE(std::isfinite(tau) && tau > 1, "PLIF: init_tau must be finite and above 1, but is ", tau);
  return Learnable(-std::log(tau - 1));
}

template <class Options>
Predefined<Options>::Predefined(Options options)
    : NeuronModule(describe(options.call()).states, options.persistent_state()),
      options_(std::move(options)),
      call_(options_.call()) {
  for (const auto& given : options_.given()) given.in(call_) = register_constant(given.name, given.constant);
  if constexpr (std::is_same_v<Options, PLIFOptions>)  // its operator requires a tensor
    if (!call_.w.is_tensor()) call_.w = register_buffer("w", at::full({}, call_.w.number()));
  if (is_always_traced<Options> || options_.strict()) cell_ = traced_cell(call_, options_.strict());
}

template <class Options> const char* Predefined<Options>::kind() const {
  static const char* name = describe(typename Options::Operator()).module;
  return name;
}

template <class Options> typename Options::Operator Predefined<Options>::call_within_bounds() const {
  auto call = call_;
  for (const auto& given : options_.given()) {
    Param& constant = given.in(call);
    constant = bounded(given.name, constant);
  }
  return call;
}

template <class Options>
NeuronModule::Results Predefined<Options>::call(at::TensorList inputs, const Tensors& states, bool store) const {
  TORCH_CHECK_VALUE(inputs.size() == 1, title(), ": takes one input, but got ", inputs.size());
  const at::Tensor& x = inputs[0];
  std::optional<typename Options::Operator> within;
  if (has_bounds()) within = call_within_bounds();
  const auto& arguments = within ? *within : call_;
  if (cell_) {
    check_starts(starts_at_numbers(arguments, states.size()));
    auto [outputs, next] = (*cell_)({x}, initial(x, states, arguments), tensors_of(arguments), store, /*scan=*/false,
                                    maybe_given(samples().lengths), maybe_given(samples().start));
    return {std::move(outputs), std::move(next)};
  }
  if constexpr (!is_always_traced<Options>) {
    const auto run = [&](const auto& call) -> Results {
      return std::apply(
          [](at::Tensor spikes, auto... next) -> Results {
            return {{std::move(spikes)}, {std::move(next)...}};
          },
          run_operator(x, states, call));
    };
    if (!store && !samples().any()) return run(arguments);
    auto with_samples = arguments;
    with_samples.store_v = store;
    with_samples.lengths = maybe_given(samples().lengths);
    with_samples.start = maybe_given(samples().start);
    return run(with_samples);
  }
  return {};
}

template <class Options>
NeuronModule::Results Predefined<Options>::call_in(const Layer& layer, at::TensorList inputs, const Tensors& states,
                                                   bool store) const {
  const auto arguments = has_bounds() ? call_within_bounds() : call_;
  check_starts(starts_at_numbers(arguments, states.size()));
  if (!cell_ && !cell_in_layer_) cell_in_layer_ = traced_cell(call_, options_.strict());
  const at::Tensor& x = inputs[0];
  return layer(cell_ ? *cell_ : *cell_in_layer_, {&x, 1}, initial(x, states, arguments), tensors_of(arguments), store);
}

template <class Options> Script Predefined<Options>::script() const {
  return cell_ ? cell_script() : operator_script();
}

// Writes the call of the operator: all constants, and the options that differ from the operator's defaults.
template <class Options> Script Predefined<Options>::operator_script() const {
  using Call = typename Options::Operator;
  const Described neuron = describe(call_);
  Script result{.name = neuron.module, .states = neuron.states};
  std::string arguments = "x";
  auto constants = constants_of(call_);
  if (constants[0].first == std::string("w")) {  // of PLIF, always a tensor
    arguments += ", " + clamped("self.w", bounds_of("w"));
    constants.erase(constants.begin());
  }
  for (const std::string& state : neuron.states) {
    arguments += ", " + state;
    result.forward += script::optional_state(state);
  }
  // Selects the overload of scalars or that of tensors.
  const bool tensors =
      std::any_of(constants.begin(), constants.end(), [](const auto& c) { return c.second.is_tensor(); });
  for (const auto& [name, value] : constants) {
    std::string text = clamped("self." + std::string(name), bounds_of(name));
    if (!value.is_tensor()) {
      text = script::number(value.number());
      if (tensors) {
        text = "self.number(" + text + ", x)";
        result.methods = script::number_of;
      }
    }
    arguments += ", " + std::string(name) + "=" + text;
  }
  if (!call_.v_reset) arguments += ", v_reset=None";
  if constexpr (requires { call_.decay_input; })
    if (!call_.decay_input) arguments += ", decay_input=False";
  if (call_.detach_reset) arguments += ", detach_reset=True";
  if (call_.surrogate != Call().surrogate) arguments += ", surrogate=" + script::quoted(call_.surrogate);
  if (!call_.surrogate_args.empty()) arguments += ", surrogate_args=" + script::list(call_.surrogate_args);
  if (!call_.spiking) arguments += ", spiking=False";

  std::string targets = "spikes";
  for (const std::string& state : neuron.states) targets += ", self." + state;
  result.forward += targets + " = torch.ops.spikeforge." + neuron.op + "(" + arguments + ")\nreturn spikes";
  return result;
}

template <class Options> Script Predefined<Options>::cell_script() const {
  const Described neuron = describe(call_);
  RunScript result{.name = neuron.module, .text = cell_->text(), .inputs = {"x"}, .states = {}, .params = {}};
  const auto add = [&](const Param& start, const char* name) {
    RunScript::State state{.name = neuron.states[result.states.size()]};
    if (start.is_tensor()) {
      state.start_buffer = name;
      state.start_bounds = bounds_of(name);
    } else {
      state.start = start.number();
    }
    result.states.push_back(state);
  };
  const std::vector<Param> starts = starts_of(call_, neuron.states.size());
  add(starts[0], "v_reset");
  if (starts.size() > 1) add(starts[1], "w_rest");

  for (const auto& [name, value] : constants_of(call_))  // scalars are in the text
    if (value.is_tensor()) result.params.push_back({name, value, bounds_of(name)});
  return result.script();
}

template <class Options> void Predefined<Options>::pretty_print(std::ostream& stream) const {
  stream << kind() << '(';
  for (const auto& [name, value] : constants_of(options_.call())) {
    Constant constant(0.0);
    constant.value = value;
    for (const auto& given : options_.given())
      if (given.name == name) {
        constant.learn = given.constant.learn;
        constant.bounds = given.constant.bounds;
      }
    stream << text_of(name, constant) << ", ";
  }
  if (!options_.call().v_reset) stream << "soft reset, ";
  if (options_.strict()) stream << "strict, ";
  stream << "surrogate=" << options_.call().surrogate << ')';
}

// Defines run_operator, which calls the operator with states that may be undefined.
#define SPIKEFORGE_NAMED(name) {#name, this->name},
#define SPIKEFORGE_PARAM(name, default_value, legal) SPIKEFORGE_NAMED(name)
#define SPIKEFORGE_PLACE(name) name,
#define SPIKEFORGE_STATE(name) maybe_given(states_[name]),
#define SPIKEFORGE_TENSOR(name) call.name.tensor(),
#define SPIKEFORGE_NEURON(op, Struct, header, tensors, states, params)                                        \
  std::vector<std::pair<const char*, Param>> Struct##Call::constants() const {                                \
    return {SPIKEFORGE_EACH(SPIKEFORGE_NAMED, tensors) params};                                               \
  }                                                                                                           \
  static auto run_operator(const at::Tensor& x, const Tensors& states_, const Struct##Call& call) {           \
    enum { SPIKEFORGE_EACH(SPIKEFORGE_PLACE, states) };                                                       \
    return op(x, SPIKEFORGE_EACH(SPIKEFORGE_TENSOR, tensors) SPIKEFORGE_EACH(SPIKEFORGE_STATE, states) call); \
  }                                                                                                           \
  template class Predefined<Struct##Options>;
#include "csrc/neuron/neurons.def"
#undef SPIKEFORGE_NAMED
#undef SPIKEFORGE_PLACE
#undef SPIKEFORGE_STATE
#undef SPIKEFORGE_TENSOR
template class Predefined<CubaLIFOptions>;

}  // namespace spikeforge::nn
