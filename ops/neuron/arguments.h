// One call of a lowered neuron operator, and what is known of each neuron.
#pragma once

#include <spikeforge/runtime/launch.h>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <span>
#include <string_view>

namespace spikeforge::ops {

enum class Legal { any, positive };

struct ParamDescription {
  const char* name;
  double default_value;
  Legal legal;
};

struct NeuronDescription {
  const char* name;
  std::span<const char* const> states;
  std::span<const ParamDescription> params;  // in the order of the cell's enum Param

  int n_states() const { return static_cast<int>(states.size()); }
  int n_params() const { return static_cast<int>(params.size()); }
};

const NeuronDescription& describe(NeuronKind kind);

constexpr NeuronKind all_neurons[] = {
#define SPIKEFORGE_NEURON(name, Struct, header) NeuronKind::name,
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
};

constexpr bool has_two_states(NeuronKind kind) { return kind == NeuronKind::izhikevich; }
constexpr bool has_decay_input(NeuronKind kind) { return kind == NeuronKind::lif || kind == NeuronKind::plif; }

// A surrogate's name and numbers, checked; no numbers are the defaults. Throws ValueError.
struct Surrogate {
  SurrogateKind kind;
  std::array<double, max_surrogate_args> args;
};
Surrogate parse_surrogate(const char* op, std::string_view name, c10::ArrayRef<double> args);
std::string_view name_of(SurrogateKind kind);

// Throws ValueError unless a parameter that has to be positive is.
void check_positive(const char* op, const char* name, double value);

// Undefined for none.
inline at::Tensor tensor_of(const std::optional<at::Tensor>& t) { return t.has_value() ? *t : at::Tensor(); }

using OptionalTensorList = c10::List<std::optional<at::Tensor>>;

// So many Nones. All calls without tensor parameters share these lists, since making one costs several allocations:
// they must not be changed.
const OptionalTensorList& no_tensors(std::size_t n_params);

// params[j] is a tensor, or None and the parameter is numbers[j].
struct NeuronArguments {
  NeuronKind kind{};
  at::Tensor x;
  std::array<std::optional<at::Tensor>, max_states> states;
  OptionalTensorList params = no_tensors(0);
  c10::ArrayRef<double> numbers;
  NeuronOptions options;
  std::string_view surrogate;
  c10::ArrayRef<double> surrogate_args;
  bool store_v = false;
};

struct ForwardResults {
  at::Tensor spikes;
  std::array<at::Tensor, max_states> states;
  at::Tensor checkpoints;
};

struct BackwardArguments : NeuronArguments {
  std::optional<at::Tensor> grad_spikes;
  std::array<std::optional<at::Tensor>, max_states> grad_states;
  at::Tensor checkpoints;
  c10::List<bool> needs_grad;  // over x, the states, the parameters
};

}  // namespace spikeforge::ops
