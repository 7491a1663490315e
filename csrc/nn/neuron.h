// Custom neurons as modules, and the leaky integrator.
//
//   Neuron neuron(NeuronOptions(alif).param("tau", Learnable(2.0)).param("beta", 0.2));
//
// `alif` is the result of spikeforge::trace, or neuron text. Its states and parameters keep their names; each parameter
// is a scalar, a tensor or learnable. Ports: "in", or the names of the inputs if there are several; "out", or "out0",
// "out1", ...
#pragma once

#include "csrc/nn/neuron_module.h"
#include "ops/traced.h"

namespace spikeforge::nn {

class SPIKEFORGE_API NeuronOptions {
 public:
  NeuronOptions(spikeforge::Neuron neuron) : neuron_(std::move(neuron)) {}  // NOLINT(google-explicit-constructor)
  NeuronOptions(std::string text) : neuron_(std::move(text)) {}             // NOLINT(google-explicit-constructor)

  NeuronOptions& param(std::string name, Constant constant);
  // Includes the states in save().
  NeuronOptions& persistent_state(bool on) { return persistent_ = on, *this; }
  // The option `scan` of spikeforge::Neuron. It applies only if the module runs alone: not in a layer with batch norm
  // or a residual, and not in a recurrent layer.
  NeuronOptions& scan(bool on) { return scan_ = on, *this; }

  const spikeforge::Neuron& neuron() const { return neuron_; }
  const std::vector<std::pair<std::string, Constant>>& params() const { return params_; }
  bool persistent_state() const { return persistent_; }
  bool scan() const { return scan_; }

 private:
  spikeforge::Neuron neuron_;
  std::vector<std::pair<std::string, Constant>> params_;
  bool persistent_ = false, scan_ = false;
};

class SPIKEFORGE_API NeuronImpl : public NeuronModule {
 public:
  // Throws c10::ValueError unless exactly the parameters of the neuron are given.
  explicit NeuronImpl(NeuronOptions options);

  Names input_names() const override { return inputs_; }
  Names output_names() const override { return outputs_; }
  const NeuronOptions& options() const { return options_; }
  void pretty_print(std::ostream& stream) const override;
  Script script() const override;
  bool takes_layer() const override { return !draws_; }  // layers cannot draw random numbers
  bool draws() const override { return draws_; }
  bool runs_as_text() const override { return true; }

 protected:
  const char* kind() const override { return name_.c_str(); }
  Results call(at::TensorList inputs, const Tensors& states, bool store) const override;
  Results call_in(const Layer& layer, at::TensorList inputs, const Tensors& states, bool store) const override;
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<NeuronImpl>(options_); }

 private:
  NeuronOptions options_;
  std::string name_;
  Names inputs_, outputs_;
  std::vector<double> initial_;   // of the states
  std::vector<Param> constants_;  // in the neuron's order
  Names param_names_;             // the names of the constants
  mutable Tensors params_;        // the constants as tensors, scalars in this type
  mutable std::optional<at::ScalarType> params_type_;
  bool draws_ = false;  // random numbers
};
TORCH_MODULE(Neuron);

// Leaky integrator that never fires, as the readout of a network: V = V + (X - (V - v_rest)) / tau is its output and
// its state v.
class SPIKEFORGE_API LIOptions {
 public:
  LIOptions& tau(Constant constant) { return tau_ = std::move(constant), *this; }
  LIOptions& v_rest(Constant constant) { return v_rest_ = std::move(constant), *this; }
  // If false: V = V - (V - v_rest) / tau + X.
  LIOptions& decay_input(bool on) { return decay_input_ = on, *this; }
  LIOptions& persistent_state(bool on) { return persistent_ = on, *this; }
  LIOptions& scan(bool on) { return scan_ = on, *this; }  // as in NeuronOptions

  bool decay_input() const { return decay_input_; }
  NeuronOptions neuron() const;

 private:
  Constant tau_ = 2.0, v_rest_ = 0.0;
  bool decay_input_ = true, persistent_ = false, scan_ = false;
};

class SPIKEFORGE_API LIImpl : public NeuronImpl {
 public:
  explicit LIImpl(const LIOptions& options = {}) : NeuronImpl(options.neuron()), options_(options) {}

  bool decay_input() const { return options_.decay_input(); }

 protected:
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<LIImpl>(options_); }

 private:
  LIOptions options_;
};
TORCH_MODULE(LI);

}  // namespace spikeforge::nn
