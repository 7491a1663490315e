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

template <class... T> struct Types {};

using OptionalTensor = const std::optional<at::Tensor>&;

template <class T, std::size_t> using Repeated = T;

template <class T, std::size_t... i> Types<Repeated<T, i>...> repeat(std::index_sequence<i...>);

template <NeuronKind kind>
using StateTypes = decltype(repeat<OptionalTensor>(std::make_index_sequence<state_count(kind)>{}));

template <class T> using TensorFor = at::Tensor;

inline NeuronKind kind_of(const MultistepCall& call) { return static_cast<const PredefinedCell*>(call.cell)->kind; }

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

// Tensors before the states, such as plif's w.
template <NeuronKind kind>
using TensorParamTypes = decltype(repeat<const at::Tensor&>(std::make_index_sequence<tensor_count(kind)>{}));

template <NeuronParam::Role role, class Overload>
using ParamType = std::conditional_t<
    role == NeuronParam::decay_input, bool,
    std::conditional_t<role == NeuronParam::v_reset, typename Overload::Reset, typename Overload::Number>>;

template <NeuronKind kind, class Overload, std::size_t... i>
Types<ParamType<neuron_row(kind).params.begin()[i].role, Overload>...> param_types(std::index_sequence<i...>);

// Parameters and decay_input, in their order.
template <NeuronKind kind, class Overload>
using ParamTypes = decltype(param_types<kind, Overload>(std::make_index_sequence<neuron_row(kind).params.size()>{}));

}  // namespace spikeforge::ops
