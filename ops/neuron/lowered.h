// The lowered operators <neuron>_forward and <neuron>_backward: their C++ signatures, made from one pattern, and calls
// through the dispatcher. A neuron has one or two states, and decay_input or not; everything else is alike.
#pragma once

#include <spikeforge/ops/neuron/arguments.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace spikeforge::ops {

namespace lowered {

template <class... T>
struct Types {};

using OptionalTensor = const std::optional<at::Tensor>&;

template <NeuronKind kind>
using StateTypes =
    std::conditional_t<has_two_states(kind), Types<OptionalTensor, OptionalTensor>, Types<OptionalTensor>>;
template <NeuronKind kind>
using DecayTypes = std::conditional_t<has_decay_input(kind), Types<bool>, Types<>>;

template <class T>
using TensorFor = at::Tensor;

inline NeuronOptions options(bool hard_reset, bool detach_reset, bool spiking, bool decay_input = true) {
  return {.hard_reset = hard_reset, .detach_reset = detach_reset, .spiking = spiking, .decay_input = decay_input};
}

// `call` packs its arguments for `run`; `call_through` unpacks them for the operator's handle.
template <NeuronKind kind, class States = StateTypes<kind>, class Decay = DecayTypes<kind>>
struct Forward;

template <NeuronKind kind, class... State, class... Decay>
struct Forward<kind, Types<State...>, Types<Decay...>> {
  using Results = std::tuple<at::Tensor, TensorFor<State>..., at::Tensor>;

  template <ForwardResults (*run)(const NeuronArguments&, bool save)>
  static Results call(const at::Tensor& x, State... states, const OptionalTensorList& params,
                      c10::ArrayRef<double> numbers, Decay... decay_input, bool hard_reset, bool detach_reset,
                      std::string_view surrogate, c10::ArrayRef<double> surrogate_args, bool spiking, bool store_v,
                      bool save) {
    ForwardResults results = run({.kind = kind,
                                  .x = x,
                                  .states = {states...},
                                  .params = params,
                                  .numbers = numbers,
                                  .options = options(hard_reset, detach_reset, spiking, decay_input...),
                                  .surrogate = surrogate,
                                  .surrogate_args = surrogate_args,
                                  .store_v = store_v},
                                 save);
    return [&]<std::size_t... s>(std::index_sequence<s...>) {
      return Results(std::move(results.spikes), std::move(results.states[s])..., std::move(results.checkpoints));
    }
    (std::index_sequence_for<State...>{});
  }

  using Signature = Results(const at::Tensor&, State..., const OptionalTensorList&, c10::ArrayRef<double>, Decay...,
                            bool, bool, std::string_view, c10::ArrayRef<double>, bool, bool, bool);

  static ForwardResults call_through(const c10::TypedOperatorHandle<Signature>& op, const NeuronArguments& args,
                                     bool save) {
    return [&]<std::size_t... s>(std::index_sequence<s...>) {
      Results results =
          op.call(args.x, args.states[s]..., args.params, args.numbers, static_cast<Decay>(args.options.decay_input)...,
                  args.options.hard_reset, args.options.detach_reset, args.surrogate, args.surrogate_args,
                  args.options.spiking, args.store_v, save);
      return ForwardResults{std::move(std::get<0>(results)),
                            {std::move(std::get<1 + s>(results))...},
                            std::move(std::get<1 + sizeof...(State)>(results))};
    }
    (std::index_sequence_for<State...>{});
  }
};

template <NeuronKind kind, class States = StateTypes<kind>, class Decay = DecayTypes<kind>>
struct Backward;

template <NeuronKind kind, class... State, class... Decay>
struct Backward<kind, Types<State...>, Types<Decay...>> {
  template <std::vector<at::Tensor> (*run)(const BackwardArguments&)>
  static std::vector<at::Tensor> call(OptionalTensor grad_spikes, State... grad_states, const at::Tensor& x,
                                      State... states, const at::Tensor& checkpoints, const OptionalTensorList& params,
                                      c10::ArrayRef<double> numbers, Decay... decay_input, bool hard_reset,
                                      bool detach_reset, std::string_view surrogate,
                                      c10::ArrayRef<double> surrogate_args, bool spiking, bool store_v,
                                      c10::List<bool> needs_grad) {
    return run({{.kind = kind,
                 .x = x,
                 .states = {states...},
                 .params = params,
                 .numbers = numbers,
                 .options = options(hard_reset, detach_reset, spiking, decay_input...),
                 .surrogate = surrogate,
                 .surrogate_args = surrogate_args,
                 .store_v = store_v},
                grad_spikes,
                {grad_states...},
                checkpoints,
                std::move(needs_grad)});
  }

  using Signature = std::vector<at::Tensor>(OptionalTensor, State..., const at::Tensor&, State..., const at::Tensor&,
                                            const OptionalTensorList&, c10::ArrayRef<double>, Decay..., bool, bool,
                                            std::string_view, c10::ArrayRef<double>, bool, bool, c10::List<bool>);

  static std::vector<at::Tensor> call_through(const c10::TypedOperatorHandle<Signature>& op,
                                              const BackwardArguments& args) {
    return [&]<std::size_t... s>(std::index_sequence<s...>) {
      return op.call(args.grad_spikes, args.grad_states[s]..., args.x, args.states[s]..., args.checkpoints, args.params,
                     args.numbers, static_cast<Decay>(args.options.decay_input)..., args.options.hard_reset,
                     args.options.detach_reset, args.surrogate, args.surrogate_args, args.options.spiking, args.store_v,
                     args.needs_grad);
    }
    (std::index_sequence_for<State...>{});
  }
};

template <NeuronKind kind>
ForwardResults forward(const NeuronArguments& args, bool save) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow((std::string("spikeforge::") + describe(kind).name + "_forward").c_str(), "")
          .template typed<typename Forward<kind>::Signature>();
  return Forward<kind>::call_through(op, args, save);
}

template <NeuronKind kind>
std::vector<at::Tensor> backward(const BackwardArguments& args) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow((std::string("spikeforge::") + describe(kind).name + "_backward").c_str(), "")
          .template typed<typename Backward<kind>::Signature>();
  return Backward<kind>::call_through(op, args);
}

}  // namespace lowered

// Calls through the dispatcher.
inline ForwardResults call_forward(const NeuronArguments& args, bool save) {
  switch (args.kind) {
#define SPIKEFORGE_NEURON(name, Struct, header) \
  case NeuronKind::name:                        \
    return lowered::forward<NeuronKind::name>(args, save);
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
  }
  return {};
}

inline std::vector<at::Tensor> call_backward(const BackwardArguments& args) {
  switch (args.kind) {
#define SPIKEFORGE_NEURON(name, Struct, header) \
  case NeuronKind::name:                        \
    return lowered::backward<NeuronKind::name>(args);
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
  }
  return {};
}

// Registers one device's kernels for all neurons.
template <ForwardResults (*run_forward)(const NeuronArguments&, bool),
          std::vector<at::Tensor> (*run_backward)(const BackwardArguments&)>
void register_lowered(torch::Library& library) {
#define SPIKEFORGE_NEURON(name, Struct, header)                                                               \
  library.impl(#name "_forward", TORCH_FN((lowered::Forward<NeuronKind::name>::template call<run_forward>))); \
  library.impl(#name "_backward", TORCH_FN((lowered::Backward<NeuronKind::name>::template call<run_backward>)));
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
}

}  // namespace spikeforge::ops
