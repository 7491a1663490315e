// Shared by all neurons: states of the shape of one step of the input, which are checked against it, and their
// sequences.
#pragma once

#include "csrc/nn/constant.h"
#include "csrc/nn/stateful.h"
#include "ops/traced.h"

#include <functional>

namespace spikeforge::nn {

class SPIKEFORGE_API NeuronModule : public Stateful {
 public:
  Names state_names() const override { return names_; }
  bool takes_samples() const override { return true; }
  at::Tensor own_state(std::size_t i) const override { return states_[i]; }

  // Returns the bounds of a learned constant; no bounds for other constants.
  Bounds bounds_of(const std::string& name) const;
  // Returns the value that the neuron uses for a constant: clamped to its bounds.
  Param bounded(const std::string& name, const Param& value) const;

  struct Results {
    Tensors outputs;
    Tensors states;  // the last states, or with `store` their sequences
  };
  // Runs the neuron, as a traced cell, together with the layer around it.
  using Layer = std::function<Results(const spikeforge::Neuron&, at::TensorList inputs, at::TensorList states,
                                      at::TensorList params, bool store)>;
  // During its lifetime, the layer runs the calls of the neuron.
  class Within {
   public:
    Within(NeuronModule& neuron, const Layer& layer) : neuron_(neuron) { neuron_.layer_ = &layer; }
    ~Within() { neuron_.layer_ = nullptr; }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    NeuronModule& neuron_;
  };
  virtual bool takes_layer() const { return false; }
  // True if the neuron always runs as a traced cell, and is not compiled into the library.
  virtual bool runs_as_text() const { return false; }

 protected:
  explicit NeuronModule(Names state_names, bool persistent_state);

  // Throws for an input that no call accepts, before the states are compared with it.
  virtual void check_input(const at::Tensor& /*x*/) const {}
  // Calls the operator once. A state that does not exist is undefined.
  virtual Results call(at::TensorList inputs, const Tensors& states, bool store) const = 0;
  // The same for a neuron in a layer, if the neuron supports layers.
  virtual Results call_in(const Layer& layer, at::TensorList inputs, const Tensors& states, bool store) const;

  Tensors advance(at::TensorList inputs, std::int64_t steps) final;
  // Throws c10::ValueError if samples restart and the initial value of a state is not a constant of the text.
  void check_starts(bool are_numbers) const;
  void set_own_state(std::size_t i, at::Tensor value) override { states_[i] = std::move(value); }
  bool stores_states() const override { return true; }
  at::Tensor own_sequence(std::size_t i) const override { return sequences_[i]; }

  // Returns a copy of a tensor constant, registered as a buffer or as a parameter. A scalar stays a scalar unless it is
  // learned. Throws c10::ValueError if min is above max, or if a bound is NaN.
  Param register_constant(const std::string& name, const Constant& constant);
  bool has_bounds() const { return !bounds_.empty(); }

 private:
  void check_live(const at::Tensor& x) const;
  void keep_last(at::TensorList inputs, std::int64_t steps);

  Names names_;
  std::vector<std::pair<std::string, Bounds>> bounds_;  // of learned constants with bounds
  Tensors states_, sequences_;
  const Layer* layer_ = nullptr;
};

// Returns "tau=2", "tau=[8]" for a tensor, "tau=[8] learned", "tau=[] learned in [1, inf]".
SPIKEFORGE_API std::string text_of(const std::string& name, const Constant& constant);

}  // namespace spikeforge::nn
