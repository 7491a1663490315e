// The parts of the signatures of a predefined neuron's operators.
#pragma once

#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/neuron/neuron_kind.h"
#include "ops/multistep/multistep.h"

#include <c10/core/Scalar.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace spikeforge::ops {

template <class... T>
struct Types {};

using OptionalTensor = const std::optional<at::Tensor>&;

template <NeuronKind kind>
using StateTypes =
    std::conditional_t<state_count(kind) == 2, Types<OptionalTensor, OptionalTensor>, Types<OptionalTensor>>;

template <class T>
using TensorFor = at::Tensor;

// f.operator()<kind>() for the neuron of a call.
template <class F>
auto with_kind(const MultistepCall& call, F&& f) {
  switch (static_cast<const PredefinedCell*>(call.cell)->kind) {
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) \
  case NeuronKind::name:                                                 \
    return f.template operator()<NeuronKind::name>();
#include "csrc/neuron/neurons.def"
  }
  TORCH_CHECK(false, "spikeforge: no predefined neuron");
}

// A call of a public operator in its two overloads: parameters are scalars, or tensors with None for the default.
struct OfNumbers {
  static constexpr const char* overload = "";
  using Number = const at::Scalar&;
  using Reset = const std::optional<at::Scalar>&;
};
struct OfTensors {
  static constexpr const char* overload = "tensor";
  using Number = OptionalTensor;
  using Reset = OptionalTensor;
};

// Tensors ahead of the states, such as plif's w.
template <NeuronKind kind>
struct TensorParamTypes;
// Parameters and decay_input, in their order.
template <NeuronKind kind, class Overload>
struct ParamTypes;

template <class None, class... T>
Types<T...> without_first(Types<None, T...>);

#define SPIKEFORGE_TENSOR(name) , const at::Tensor&
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)                                           \
  template <>                                                                                                      \
  struct TensorParamTypes<NeuronKind::name> {                                                                      \
    using type = decltype(without_first(std::declval<Types<void SPIKEFORGE_EACH(SPIKEFORGE_TENSOR, tensors)>>())); \
  };
#include "csrc/neuron/neurons.def"
#undef SPIKEFORGE_TENSOR

#define SPIKEFORGE_PARAM(name, default_value, legal) , typename Overload::Number
#define SPIKEFORGE_V_RESET(default_value) , typename Overload::Reset
#define SPIKEFORGE_DECAY_INPUT() , bool
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)      \
  template <class Overload>                                                   \
  struct ParamTypes<NeuronKind::name, Overload> {                             \
    using type = decltype(without_first(std::declval<Types<void params>>())); \
  };
#include "csrc/neuron/neurons.def"

}  // namespace spikeforge::ops
