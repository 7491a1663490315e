#include "csrc/kernels/multistep/loihi_cells.h"
#include "csrc/nn/internal/loihi_call.h"
#include "csrc/nn/internal/scoped_samples.h"
#include "csrc/nn/loihi.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <ostream>

namespace spikeforge::nn {
namespace {

struct LoihiArgument {
  const char* name;
  LoihiNumber LoihiOptions::*number = nullptr;
  std::int64_t LoihiOptions::*steps = nullptr;
};

constexpr LoihiArgument loihi_arguments[] = {
    {"du", &LoihiOptions::du},
    {"dv", &LoihiOptions::dv},
    {"bias_mant", &LoihiOptions::bias_mant},
    {"bias_exp", &LoihiOptions::bias_exp},
    {"vth", &LoihiOptions::vth},
    {"vth_hi", &LoihiOptions::vth},
    {"vth_lo", &LoihiOptions::vth_lo},
    {"reset_interval", nullptr, &LoihiOptions::reset_interval},
    {"reset_offset", nullptr, &LoihiOptions::reset_offset},
    {"refractory_period", nullptr, &LoihiOptions::refractory_period},
};

const LoihiArgument& find_argument(const std::string& name) {
  return *std::find_if(std::begin(loihi_arguments), std::end(loihi_arguments),
                       [&](const LoihiArgument& argument) { return name == argument.name; });
}

const LoihiCell& operator_of(const LoihiLIFOptions& options) { return loihi_cell(options.ternary(), options.form()); }

Names loihi_states_of(const LoihiLIFOptions& options) { return operator_of(options).states; }

Names loihi_params_of(const LoihiLIFOptions& options) {
  Names names;
  for (const CellParam& param : operator_of(options).params) names.push_back(param.name);
  return names;
}

}  // namespace

LoihiLIFOptions& LoihiLIFOptions::set(const char* name, LoihiNumber number) {
  std::erase_if(given_, [name](const auto& given) { return given.first == name; });
  given_.emplace_back(name, std::move(number));
  return *this;
}

LoihiLIFImpl::LoihiLIFImpl(LoihiLIFOptions options)
    : NeuronModule(loihi_states_of(options), options.persistent_state()), options_(std::move(options)) {
  call_.form = options_.form();
  call_.surrogate = options_.surrogate();
  call_.surrogate_args = options_.surrogate_args();
  call_.detach_reset = options_.detach_reset();
  const Names names = loihi_params_of(options_);
  std::vector<std::int64_t> shape;
  at::TensorOptions place(at::kInt);
  for (const auto& [name, value] : options_.given()) {
    TORCH_CHECK_VALUE(std::find(names.begin(), names.end(), name) != names.end(), "LoihiLIF: ", name,
                      " is no argument of ", operator_of(options_).name, ", which has ", c10::Join(", ", names));
    const LoihiArgument& argument = find_argument(name);
    if (argument.steps) {
      call_.*argument.steps = value.number();
    } else if (!value.is_tensor()) {
      call_.*argument.number = value;
    } else {
      TORCH_CHECK_VALUE(value.tensor().defined(), "LoihiLIF: ", name, " is an undefined tensor");
      const at::Tensor own = register_buffer(name, value.tensor().detach().clone());
      call_.*argument.number = own;
      TORCH_CHECK_VALUE(at::are_expandable(shape, own.sizes()), "LoihiLIF: ", name, " has shape ", own.sizes(),
                        ", which does not broadcast against ", at::IntArrayRef(shape), ", that of the others");
      shape = at::infer_size(shape, own.sizes());
      place = place.device(own.device());
    }
  }
  // No steps: the operator checks its arguments, and that is all; those of a floating-point input too.
  shape.insert(shape.begin(), 0);
  for (const at::ScalarType type : {at::kInt, at::kFloat})
    LoihiLIFImpl::call({at::zeros(shape, place.dtype(type))}, Tensors(state_names().size()), false);
}

namespace {

bool is_loihi_type(const at::Tensor& t) {
  return t.scalar_type() == at::kInt || t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble;
}

}  // namespace

void LoihiLIFImpl::check_input(const at::Tensor& x) const {
  TORCH_CHECK_TYPE(is_loihi_type(x), title(), ": x must be int32, or float32 or float64 to be differentiated, but is ",
                   x.scalar_type(), "; pass x.to(torch.int32)");
}

void LoihiLIFImpl::set_own_state(std::size_t i, at::Tensor value) {
  TORCH_CHECK_TYPE(!value.defined() || is_loihi_type(value), title(), ": the state ", state_names()[i],
                   " must be int32, or of the floating-point type of the input, but is ", value.scalar_type());
  NeuronModule::set_own_state(i, std::move(value));
}

NeuronModule::Results LoihiLIFImpl::call(at::TensorList inputs, const Tensors& states, bool store) const {
  TORCH_CHECK_VALUE(inputs.size() == 1, title(), ": takes one input, but got ", inputs.size());
  LoihiState state{.u = states[0], .v = states[1], .counter = {}};  // undefined: 0
  if (states.size() > 2) state.counter = states[2];
  LoihiOptions options = call_;
  options.store_states = store;
  options.lengths = maybe_given(samples().lengths);
  options.start = maybe_given(samples().start);
  LoihiResults results = call_as(title(), [&] {
    return options_.ternary() ? loihi_ternary_lif(inputs[0], state, options) : loihi_lif(inputs[0], state, options);
  });
  Tensors next{std::move(results.u), std::move(results.v)};
  if (states.size() > 2) next.push_back(std::move(results.counter));
  return {{std::move(results.spikes)}, std::move(next)};
}

Script LoihiLIFImpl::script() const {
  Script result{.name = kind(), .states = state_names()};
  std::string arguments = "x";
  std::string targets = "spikes";
  for (const std::string& state : result.states) {
    arguments += ", " + state;
    targets += ", self." + state;
    result.forward += state + ": Optional[Tensor] = self." + state + "\nif self." + state + ".size() == [0]:\n  " +
                      state + " = None\n";
  }
  // Its overloads: numbers, a tensor of biases beside numbers, tensors.
  const auto& given = options_.given();
  const bool tensors = std::any_of(given.begin(), given.end(),
                                   [](const auto& g) { return g.second.is_tensor() && g.first != "bias_mant"; });
  for (const auto& [name, value] : given) {
    std::string text = value.is_tensor() ? script::member(name) : script::number(value.number());
    if (tensors && !value.is_tensor() && !find_argument(name).steps)
      text = "torch.full([], " + text + ", dtype=x.dtype, device=x.device)";
    arguments += ", " + name + "=" + text;
  }
  if (options_.surrogate() != LoihiOptions().surrogate)
    arguments += ", surrogate=" + script::quoted(options_.surrogate());
  if (!options_.surrogate_args().empty()) arguments += ", surrogate_args=" + script::list(options_.surrogate_args());
  if (options_.detach_reset()) arguments += ", detach_reset=True";
  result.forward +=
      targets + " = torch.ops.spikeforge." + operator_of(options_).name + "(" + arguments + ")\nreturn spikes";
  return result;
}

void LoihiLIFImpl::pretty_print(std::ostream& stream) const {
  stream << kind() << '(';
  if (options_.ternary()) stream << "ternary, ";
  for (const auto& [name, value] : options_.given()) {
    stream << name << '=';
    if (value.is_tensor())
      stream << value.tensor().sizes();
    else
      stream << value.number();
    stream << ", ";
  }
  stream << "form=" << name_of(options_.form()) << ')';
}

}  // namespace spikeforge::nn
