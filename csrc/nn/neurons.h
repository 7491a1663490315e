// The predefined neurons of neurons.def as modules, such as LIF; and CubaLIF, whose input charges a current.
//
//   LIF lif(LIFOptions().tau(Learnable(2.0)).surrogate("atan").persistent_state(true));
//   at::Tensor spikes = lif(x_seq);  // [T, *shape] to [T, *shape]; v is kept for the next call
//
// Equations, defaults and legal values are those of ops/neuron.h. Every constant is a scalar, a tensor that broadcasts
// against shape, or learnable (constant.h). States have the names in neurons.def; those of CubaLIF are v and i.
//
// LIFOptions and the other options have a setter for each parameter of neurons.def. A tensor that the operator
// requires, PLIF's w, is learned; its default initial value is 0.
#pragma once

#include "csrc/nn/neuron_module.h"
#include "ops/neuron.h"
#include "ops/traced.h"

#include <algorithm>

namespace spikeforge::nn {

// Returns the learned w for a time constant. Throws ValueError unless tau is finite and above 1.
SPIKEFORGE_API Constant learned_from_tau(double tau);

// The operator's options, and the constants that are tensors or learned. `Call` is a struct of ops/neuron.h.
template <class Self, class Call> class PredefinedOptions {
 public:
  using Own = Self;
  using Operator = Call;
  struct Given {
    std::string name;
    Constant constant;
    Param& (*in)(Call&);
  };

  // std::nullopt means soft reset.
  Self& v_reset(std::optional<Constant> constant) {
    call_.v_reset = 0.0;
    if (constant) return set("v_reset", *constant, [](Call& call) -> Param& { return *call.v_reset; });
    std::erase_if(given_, [](const Given& given) { return given.name == "v_reset"; });
    call_.v_reset = std::nullopt;
    return self();
  }
  // Detaches the spike in the reset, so that no gradient flows through it.
  Self& detach_reset(bool on) { return call_.detach_reset = on, self(); }
  Self& surrogate(std::string name, std::vector<double> args = {}) {
    call_.surrogate = std::move(name);
    call_.surrogate_args = std::move(args);
    return self();
  }
  // If false, the output is the surrogate's primitive instead of the step function.
  Self& spiking(bool on) { return call_.spiking = on, self(); }
  // Fires if H > v_threshold rather than >=. The neuron is then a traced cell, which requires `spiking`.
  Self& strict(bool on) { return strict_ = on, self(); }
  // Includes the states in save().
  Self& persistent_state(bool on) { return persistent_ = on, self(); }

  // For PLIF: initialises the learned w from a time constant above 1.
  Self& init_tau(double tau) requires requires(Call call) { call.w; }
  { return self().w(learned_from_tau(tau)); }

  const Call& call() const { return call_; }
  const std::vector<Given>& given() const { return given_; }
  bool strict() const { return strict_; }
  bool persistent_state() const { return persistent_; }

 protected:
  Self& self() { return static_cast<Self&>(*this); }

  Self& set(const char* name, const Constant& constant, Param& (*in)(Call&)) {
    std::erase_if(given_, [name](const Given& given) { return given.name == name; });
    in(call_) = constant.value;
    if (constant.learn || constant.value.is_tensor()) given_.push_back({name, constant, in});
    return self();
  }

  Call call_;
  std::vector<Given> given_;
  bool strict_ = false, persistent_ = false;
};

#define SPIKEFORGE_CONSTANT(name)                                                    \
  Own& name(Constant constant) {                                                     \
    return set(#name, constant, [](Operator& call) -> Param& { return call.name; }); \
  }

// Defines for each neuron of neurons.def a struct such as LIFCall, the operator's arguments including the tensors that
// it requires, and options such as LIFOptions.
#define SPIKEFORGE_TENSOR(name) Param name = 0.0;
#define SPIKEFORGE_LEARN(name) name(Learnable(0.0));
#define SPIKEFORGE_PARAM(name, default_value, legal) SPIKEFORGE_CONSTANT(name)
#define SPIKEFORGE_DECAY_INPUT() \
  Own& decay_input(bool on) { return call_.decay_input = on, *this; }
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)                                               \
  struct SPIKEFORGE_API Struct##Call : Struct##Arguments {                                                             \
    static constexpr NeuronKind kind = NeuronKind::name;                                                               \
    std::vector<std::pair<const char*, Param>> constants() const; /* all but v_reset */                                \
    SPIKEFORGE_EACH(SPIKEFORGE_TENSOR, tensors)                                                                        \
  };                                                                                                                   \
  struct SPIKEFORGE_API Struct##Options : PredefinedOptions<Struct##Options, Struct##Call> {                           \
    Struct##Options(){SPIKEFORGE_EACH(SPIKEFORGE_LEARN, tensors)} SPIKEFORGE_EACH(SPIKEFORGE_CONSTANT, tensors) params \
  };
#include "csrc/neuron/neurons.def"
#undef SPIKEFORGE_LEARN
#undef SPIKEFORGE_TENSOR

// The neuron CubaLIF, a traced cell: I = I - I / tau_synapse + X, and I charges V as X charges a LIF with tau_membrane.
struct CubaLIFCall {
  Param tau_synapse = 2.0, tau_membrane = 2.0;
  bool decay_input = true;
  Param v_threshold = 1.0;
  std::optional<Param> v_reset = 0.0;
  bool detach_reset = false;
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool spiking = true;

  std::vector<std::pair<const char*, Param>> constants() const {  // all but v_reset
    return {{"tau_synapse", tau_synapse}, {"tau_membrane", tau_membrane}, {"v_threshold", v_threshold}};
  }
};
struct SPIKEFORGE_API CubaLIFOptions : PredefinedOptions<CubaLIFOptions, CubaLIFCall> {
  SPIKEFORGE_CONSTANT(v_threshold)
  SPIKEFORGE_CONSTANT(tau_synapse)
  SPIKEFORGE_CONSTANT(tau_membrane)
  CubaLIFOptions& decay_input(bool on) { return call_.decay_input = on, *this; }
};

#undef SPIKEFORGE_CONSTANT

template <class Options> class SPIKEFORGE_API Predefined : public NeuronModule {
 public:
  explicit Predefined(Options options = {});

  const Options& options() const { return options_; }
  void pretty_print(std::ostream& stream) const override;
  Script script() const override;
  bool takes_layer() const override { return call_.spiking; }
  bool runs_as_text() const override { return cell_.has_value(); }

 protected:
  const char* kind() const override;
  Results call(at::TensorList inputs, const Tensors& states, bool store) const override;
  Results call_in(const Layer& layer, at::TensorList inputs, const Tensors& states, bool store) const override;
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<Predefined>(options_); }

 private:
  // Returns the operator's arguments, with learned constants clamped to their bounds.
  typename Options::Operator call_within_bounds() const;
  Script operator_script() const;
  Script cell_script() const;

  Options options_;
  typename Options::Operator call_;  // with the registered copies of tensors

  std::optional<spikeforge::Neuron> cell_;                   // of strict neurons and CubaLIF
  mutable std::optional<spikeforge::Neuron> cell_in_layer_;  // of other neurons
};

#define SPIKEFORGE_MODULE(name)                    \
  extern template class Predefined<name##Options>; \
  using name##Impl = Predefined<name##Options>;    \
  TORCH_MODULE(name);
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) SPIKEFORGE_MODULE(Struct)
#include "csrc/neuron/neurons.def"
SPIKEFORGE_MODULE(CubaLIF)
#undef SPIKEFORGE_MODULE

}  // namespace spikeforge::nn
