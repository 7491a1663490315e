#include "csrc/nn/loihi.h"
#include "csrc/kernels/multistep/loihi_cells.h"
#include "csrc/nn/internal/scoped_samples.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <ostream>

namespace spikeforge::nn {
namespace {

// Errors of an operator, which names itself and the argument, with the name of the module.
template <class Call> auto call_as(const std::string& title, const Call& call) {
  try {
    return call();
  } catch (const c10::TypeError& error) {
    TORCH_CHECK_TYPE(false, title, ": ", error.msg());
    throw;
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, title, ": ", error.msg());
    throw;
  }
}

// Returns the number of inputs of a matrix. The operator raises an error for tensors of other dimensions.
std::int64_t columns_of(const at::Tensor& matrix) { return matrix.dim() == 2 ? matrix.size(1) : 1; }

bool is_loihi_type(const at::Tensor& t) {
  return t.scalar_type() == at::kInt || t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble;
}

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

// --- Neurons

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
                      " is not an argument of ", operator_of(options_).name, ", which has ", c10::Join(", ", names));
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
  // A call of 0 steps, which only checks the arguments, including those for a floating-point input.
  shape.insert(shape.begin(), 0);
  for (const at::ScalarType type : {at::kInt, at::kFloat})
    LoihiLIFImpl::call({at::zeros(shape, place.dtype(type))}, Tensors(state_names().size()), false);
}

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
    result.forward += script::optional_state(state);
  }
  // The operator's overloads accept scalars, a tensor of biases and other scalars, or tensors.
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

// --- Connections

LoihiConnection::LoihiConnection(const char* op, std::int64_t slots, Numbers numbers,
                                 const LoihiConnectionOptions& call)
    : op_(op), slots_(slots), numbers_(std::move(numbers)) {
  numbers_.emplace_back("weight_exp", call.weight_exp);
  numbers_.emplace_back("num_message_bits", call.num_message_bits);
}

at::Tensor LoihiConnection::register_copy(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), title(), ": ", name, " is an undefined tensor");
  tensors_.emplace_back(name);
  return register_buffer(name, tensor.detach().clone());
}

void LoihiConnection::finish(std::int64_t in, bool persistent_state) {
  // A call of 0 steps, which only checks the arguments.
  const at::Tensor nothing = at::zeros({0, in}, named_buffers()[tensors_[0]].options().dtype(at::kInt));
  call_as(title(), [&] { return send(nothing, {}); });
  if (persistent_state && slots_ > 0) make_persistent("buffer");
}

std::vector<std::int64_t> LoihiConnection::buffer_shape(const at::Tensor& x) const {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.front() = slots_;
  shape.back() = out();
  return shape;
}

Tensors LoihiConnection::at_rest(at::TensorList inputs) {
  if (slots_ == 0) return advance(inputs, 1);
  std::vector<std::int64_t> shape = buffer_shape(inputs[0]);
  shape.front() = 1;
  return {at::zeros(shape, inputs[0].options())};
}

void LoihiConnection::set_own_state(std::size_t /*i*/, at::Tensor value) {
  TORCH_CHECK_TYPE(!value.defined() || value.scalar_type() == at::kInt, title(),
                   ": the state buffer must be int32, but is ", value.scalar_type());
  TORCH_CHECK_VALUE(!value.defined() || (value.dim() >= 2 && value.size(0) == slots_ && value.size(-1) == out()),
                    title(), ": the state buffer must be [", slots_, ", *batch, ", out(), "], but is ", value.sizes());
  buffer_ = std::move(value);
}

Tensors LoihiConnection::advance(at::TensorList inputs, std::int64_t steps) {
  TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].defined() && inputs[0].dim() >= 2 && inputs[0].size(0) == steps,
                    title(), ": takes one input, [T, *batch, in]");
  const at::Tensor& x = inputs[0];
  TORCH_CHECK_TYPE(x.scalar_type() == at::kInt, title(), ": x must be int32, as the weights are, but is ",
                   x.scalar_type(), "; pass x.to(torch.int32)");
  if (buffer_.defined()) {
    const std::vector<std::int64_t> shape = buffer_shape(x);
    TORCH_CHECK_VALUE(buffer_.sizes() == shape, title(), ": the state buffer has shape ", buffer_.sizes(),
                      ", but this input's is ", at::IntArrayRef(shape), "; call reset() to restart");
    TORCH_CHECK_VALUE(buffer_.device() == x.device(), title(), ": the state buffer is on ", buffer_.device(),
                      ", but the input is on ", x.device(), "; call reset() to restart");
  }
  Arrivals arrivals = call_as(title(), [&] { return send(x, buffer_); });
  if (slots_ > 0) buffer_ = std::move(arrivals.buffer);
  return {std::move(arrivals.y)};
}

Script LoihiConnection::script() const {
  Script result{.name = kind(), .states = state_names()};
  std::string arguments = "x";
  for (const std::string& tensor : tensors_) arguments += ", " + script::member(tensor);
  if (slots_ > 0) {
    result.forward = script::optional_state("buffer");
    arguments += ", buffer";
  }
  for (const auto& [name, number] : numbers_) arguments += std::string(", ") + name + "=" + script::number(number);
  result.forward += std::string(slots_ > 0 ? "y, self.buffer" : "y, nothing") + " = torch.ops.spikeforge." + op_ + "(" +
                    arguments + ")\nreturn y";
  return result;
}

void LoihiConnection::pretty_print(std::ostream& stream) const {
  const auto buffers = named_buffers();
  const char* before = "(";
  stream << kind();
  for (const std::string& tensor : tensors_) {
    stream << before << tensor << '=' << buffers[tensor].sizes();
    before = ", ";
  }
  for (const auto& [name, number] : numbers_) stream << before << name << '=' << number;
  stream << ')';
}

LoihiDenseImpl::LoihiDenseImpl(LoihiDenseOptions options)
    : LoihiConnection("loihi_dense", options.call().delay, {{"delay", options.call().delay}}, options.call()),
      options_(std::move(options)) {
  weight = register_copy("weight", options_.weight);
  finish(columns_of(weight), options_.persistent_state());
}

Arrivals LoihiDenseImpl::send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const {
  return loihi_dense(x, weight, buffer, options_.call());
}

LoihiSparseImpl::LoihiSparseImpl(LoihiSparseOptions options)
    : LoihiConnection("loihi_sparse", options.call().delay, {{"delay", options.call().delay}}, options.call()),
      options_(std::move(options)) {
  crow_indices = register_copy("crow_indices", options_.crow_indices);
  col_indices = register_copy("col_indices", options_.col_indices);
  values = register_copy("values", options_.values);
  // Each call's x sets the number of inputs; this is the minimum.
  const std::int64_t last = col_indices.numel() == 0 ? 0 : col_indices.max().item().toLong();
  finish(std::max<std::int64_t>(last, 0) + 1, options_.persistent_state());
}

Arrivals LoihiSparseImpl::send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const {
  return loihi_sparse(x, crow_indices, col_indices, values, buffer, options_.call());
}

LoihiDelayDenseImpl::LoihiDelayDenseImpl(LoihiDelayDenseOptions options)
    : LoihiConnection("loihi_delay_dense", options.max_delay + 1, {{"max_delay", options.max_delay}}, options.call()),
      options_(std::move(options)) {
  weight = register_copy("weight", options_.weight);
  delays = register_copy("delays", options_.delays);
  finish(columns_of(weight), options_.persistent_state());
}

Arrivals LoihiDelayDenseImpl::send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const {
  return loihi_delay_dense(x, weight, delays, options_.max_delay, buffer, options_.call());
}

}  // namespace spikeforge::nn
