// Spiking neurons over a sequence of steps: the C++ interface of torch.ops.spikeforge.*.
//
// x is [T, *shape], time first; float16, bfloat16, float32 or float64; on a CPU or a CUDA device. Spikes have x's
// shape, type and layout. States are [*shape], float32 for half types, else x's type; a call returns the last ones, or
// with `store_v` their sequences [T, *shape]. A parameter is a scalar, or a tensor that broadcasts against shape and is
// differentiable. If an initial state is not given, v starts at v_reset (0 under soft reset), Izhikevich's w at w_rest,
// and other states at 0.
//
//   auto [spikes, v] = lif(x, {}, {.tau = 2.0, .v_reset = std::nullopt});
//
// docs/operators.md has the equations and parameters of each neuron, csrc/neuron/<neuron>.h the equation with its
// derivative.
//
// `lengths`, int32 or int64 [B], is the number of steps of each sample (dimension 1 of x). Later spikes are 0,
// gradients are those of each sample alone, and the returned states are those after its last step. `start`, bool [T,
// B], resets the states of a sample to their initial values before the steps at which it is true.
//
// A neuron fires where H >= v_threshold; v_reset = std::nullopt is soft reset. Each returns (spikes, states...).
//
// Errors are c10::TypeError and c10::ValueError and name the operator and the argument.
#pragma once

#include "csrc/base/export.h"
#include "csrc/neuron/neuron_kind.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace spikeforge {

// A neuron's parameter: a scalar, or a tensor with a gradient.
class Param {
 public:
  Param(double number) : value_(number) {}                 // NOLINT(google-explicit-constructor)
  Param(at::Tensor tensor) : value_(std::move(tensor)) {}  // NOLINT(google-explicit-constructor)

  bool is_tensor() const { return std::holds_alternative<at::Tensor>(value_); }
  double number() const { return std::get<double>(value_); }
  const at::Tensor& tensor() const { return std::get<at::Tensor>(value_); }

 private:
  std::variant<double, at::Tensor> value_;
};

using MaybeTensor = std::optional<at::Tensor>;

// The spikes and the states.
template <NeuronKind kind>
using SpikesAndStates = std::conditional_t<state_count(kind) == 1, std::tuple<at::Tensor, at::Tensor>,
                                           std::tuple<at::Tensor, at::Tensor, at::Tensor>>;

// Defines for each neuron of neurons.def a struct such as LIFArguments, with its parameters and their defaults and the
// options of all neurons, and a function such as lif.
#define SPIKEFORGE_PARAM(name, default_value, legal) Param name = default_value;
#define SPIKEFORGE_V_RESET(default_value) std::optional<Param> v_reset = default_value;
#define SPIKEFORGE_DECAY_INPUT() bool decay_input = true;
#define SPIKEFORGE_STATE(name) const MaybeTensor &name = {},
#define SPIKEFORGE_TENSOR(name) const at::Tensor &name,
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)                                         \
  struct Struct##Arguments {                                                                                     \
    params bool detach_reset = false; /* no gradient through S in the reset */                                   \
    std::string surrogate = "sigmoid";                                                                           \
    std::vector<double> surrogate_args = {}; /* none: its defaults */                                            \
    bool spiking = true;                     /* else the surrogate's primitive */                                \
    bool store_v = false;                                                                                        \
    MaybeTensor lengths = {}, start = {}; /* of samples that are shorter than T */                               \
  };                                                                                                             \
  SPIKEFORGE_API SpikesAndStates<NeuronKind::name> name(                                                         \
      const at::Tensor& x, SPIKEFORGE_EACH(SPIKEFORGE_TENSOR, tensors) SPIKEFORGE_EACH(SPIKEFORGE_STATE, states) \
                               const Struct##Arguments& arguments = {});
#include "csrc/neuron/neurons.def"
#undef SPIKEFORGE_STATE
#undef SPIKEFORGE_TENSOR

// Former names, kept for one release.
using IfOptions = IFArguments;
using LifOptions = LIFArguments;
using PlifOptions = PLIFArguments;
using QifOptions = QIFArguments;
using EifOptions = EIFArguments;
using IzhikevichOptions = IzhikevichArguments;

}  // namespace spikeforge
