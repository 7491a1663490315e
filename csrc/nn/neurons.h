// The predefined neurons as modules: IF, LIF, PLIF, QIF, EIF, Izhikevich; and CubaLIF, whose input charges a current.
//
//   LIF lif(LIFOptions().tau(Learnable(2.0)).surrogate("atan").persistent_state(true));
//   at::Tensor spikes = lif(x_seq);  // [T, *shape] to [T, *shape]; v is kept for the next call
//
// Equations, defaults and legal values are those of ops/neuron.h. Every constant is a number, a tensor that broadcasts
// against shape, or learnable (constant.h). States: v; and w of
// Izhikevich, i of CubaLIF.
#pragma once

#include <spikeforge/nn/neuron_module.h>
#include <spikeforge/ops/neuron.h>
#include <spikeforge/ops/traced.h>

#include <algorithm>
#include <functional>

namespace spikeforge::nn {

// The operator's options, and which constants were given as tensors or to be learned. `Call` is a struct of
// ops/neuron.h.
template <class Self, class Call>
class PredefinedOptions {
 public:
  using Own = Self;
  using Operator = Call;
  struct Given {
    std::string name;
    Constant constant;
    Param& (*in)(Call&);
  };

  Self& v_threshold(Constant constant) {
    return set("v_threshold", constant, [](Call& call) -> Param& { return call.v_threshold; });
  }
  // std::nullopt: soft reset.
  Self& v_reset(std::optional<Constant> constant) {
    call_.v_reset = 0.0;
    if (constant) return set("v_reset", *constant, [](Call& call) -> Param& { return *call.v_reset; });
    std::erase_if(given_, [](const Given& given) { return given.name == "v_reset"; });
    call_.v_reset = std::nullopt;
    return self();
  }
  // No gradient through the spike in the reset.
  Self& detach_reset(bool on) { return call_.detach_reset = on, self(); }
  Self& surrogate(std::string name, std::vector<double> args = {}) {
    call_.surrogate = std::move(name);
    call_.surrogate_args = std::move(args);
    return self();
  }
  // False: the surrogate's primitive instead of the step function.
  Self& spiking(bool on) { return call_.spiking = on, self(); }
  // Fires where H > v_threshold rather than >=. It is then a traced cell, which needs `spiking`.
  Self& strict(bool on) { return strict_ = on, self(); }
  // v is part of what save() writes.
  Self& persistent_state(bool on) { return persistent_ = on, self(); }

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

struct SPIKEFORGE_API IFOptions : PredefinedOptions<IFOptions, IfOptions> {};

struct SPIKEFORGE_API LIFOptions : PredefinedOptions<LIFOptions, LifOptions> {
  SPIKEFORGE_CONSTANT(tau)
  LIFOptions& decay_input(bool on) { return call_.decay_input = on, *this; }
};

// 1/tau = sigmoid(w). w is learned, from 0 (tau 2) unless another is given.
struct PlifCall : PlifOptions {
  Param w = 0.0;
};
struct SPIKEFORGE_API PLIFOptions : PredefinedOptions<PLIFOptions, PlifCall> {
  PLIFOptions() { w(Learnable(0.0)); }
  SPIKEFORGE_CONSTANT(w)
  // The w of a time constant above 1, to be learned from there.
  PLIFOptions& init_tau(double tau);
  PLIFOptions& decay_input(bool on) { return call_.decay_input = on, *this; }
};

struct SPIKEFORGE_API QIFOptions : PredefinedOptions<QIFOptions, QifOptions> {
  SPIKEFORGE_CONSTANT(tau)
  SPIKEFORGE_CONSTANT(v_c)
  SPIKEFORGE_CONSTANT(a0)
  SPIKEFORGE_CONSTANT(v_rest)
};

struct SPIKEFORGE_API EIFOptions : PredefinedOptions<EIFOptions, EifOptions> {
  SPIKEFORGE_CONSTANT(tau)
  SPIKEFORGE_CONSTANT(delta_t)
  SPIKEFORGE_CONSTANT(theta_rh)
  SPIKEFORGE_CONSTANT(v_rest)
};

struct SPIKEFORGE_API IzhikevichOptions : PredefinedOptions<IzhikevichOptions, spikeforge::IzhikevichOptions> {
  SPIKEFORGE_CONSTANT(tau)
  SPIKEFORGE_CONSTANT(v_c)
  SPIKEFORGE_CONSTANT(a0)
  SPIKEFORGE_CONSTANT(v_rest)
  SPIKEFORGE_CONSTANT(w_rest)
  SPIKEFORGE_CONSTANT(tau_w)
  SPIKEFORGE_CONSTANT(a)
  SPIKEFORGE_CONSTANT(b)
};

// I = I - I / tau_synapse + X, and this I charges V as X charges a LIF with tau_membrane. A traced cell.
struct CubaLifCall {
  Param tau_synapse = 2.0, tau_membrane = 2.0;
  bool decay_input = true;
  Param v_threshold = 1.0;
  std::optional<Param> v_reset = 0.0;
  bool detach_reset = false;
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool spiking = true;
};
struct SPIKEFORGE_API CubaLIFOptions : PredefinedOptions<CubaLIFOptions, CubaLifCall> {
  SPIKEFORGE_CONSTANT(tau_synapse)
  SPIKEFORGE_CONSTANT(tau_membrane)
  CubaLIFOptions& decay_input(bool on) { return call_.decay_input = on, *this; }
};

#undef SPIKEFORGE_CONSTANT

template <class Options>
class SPIKEFORGE_API Predefined : public NeuronModule {
 public:
  explicit Predefined(Options options = {});

  const Options& options() const { return options_; }
  void pretty_print(std::ostream& stream) const override;
  Script script() const override;

 protected:
  const char* kind() const override;
  Results call(at::TensorList inputs, const Tensors& states, bool store) const override;
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<Predefined>(options_); }

 private:
  Script operator_script() const;
  Script cell_script() const;

  Options options_;
  typename Options::Operator call_;  // with the registered tensors in place of the given ones

  // Of a strict one, and of CubaLIF.
  std::optional<spikeforge::Neuron> cell_;
  Tensors cell_params_;
};

#define SPIKEFORGE_MODULE(name)                    \
  extern template class Predefined<name##Options>; \
  using name##Impl = Predefined<name##Options>;    \
  TORCH_MODULE(name);
SPIKEFORGE_MODULE(IF)
SPIKEFORGE_MODULE(LIF)
SPIKEFORGE_MODULE(PLIF)
SPIKEFORGE_MODULE(QIF)
SPIKEFORGE_MODULE(EIF)
SPIKEFORGE_MODULE(Izhikevich)
SPIKEFORGE_MODULE(CubaLIF)
#undef SPIKEFORGE_MODULE

}  // namespace spikeforge::nn
