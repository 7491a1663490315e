// Shared by all neurons: states with the shape of one step of input, checked against it, and their sequences.
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

  // The bounds of a learned constant; none for others.
  Bounds bounds_of(const std::string& name) const;
  // The value that the neuron uses for a constant: clamped to its bounds.
  Param bounded(const std::string& name, const Param& value) const;

  struct Results {
    Tensors outputs;
    Tensors states;  // the last ones, or with `store` their sequences
  };
  // Runs the neuron, as a traced cell, with what is around it.
  using Layer = std::function<Results(const spikeforge::Neuron&, at::TensorList inputs, at::TensorList states,
                                      at::TensorList params, bool store)>;
  // While it lives the layer makes the neuron's calls.
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
  // True if it is always a traced cell, and not compiled into the library.
  virtual bool runs_as_text() const { return false; }

 protected:
  explicit NeuronModule(Names state_names, bool persistent_state);

  // Refuses what no call takes, before the states are compared with it.
  virtual void check_input(const at::Tensor& /*x*/) const {}
  // One operator call. states: undefined where there is none.
  virtual Results call(at::TensorList inputs, const Tensors& states, bool store) const = 0;
  // The same for a neuron in a layer, if the neuron supports layers.
  virtual Results call_in(const Layer& layer, at::TensorList inputs, const Tensors& states, bool store) const;

  Tensors advance(at::TensorList inputs, std::int64_t steps) final;
  // Throws c10::ValueError if samples start anew, and a state's initial value is not a constant of the text.
  void check_starts(bool are_numbers) const;
  void set_own_state(std::size_t i, at::Tensor value) override { states_[i] = std::move(value); }
  bool stores_states() const override { return true; }
  at::Tensor own_sequence(std::size_t i) const override { return sequences_[i]; }

  // A copy of a tensor constant, registered as its kind wants; a number stays one unless it is to be learned. Throws
  // c10::ValueError where min is above max, or NaN is a bound.
  Param register_constant(const std::string& name, const Constant& constant);
  bool has_bounds() const { return !bounds_.empty(); }

 private:
  void check_live(const at::Tensor& x) const;
  void keep_last(at::TensorList inputs, std::int64_t steps);

  Names names_;
  std::vector<std::pair<std::string, Bounds>> bounds_;  // of learned constants that have some
  Tensors states_, sequences_;
  const Layer* layer_ = nullptr;
};

// "tau=2", "tau=[8]" for a tensor, "tau=[8] learned", "tau=[] learned in [1, inf]".
SPIKEFORGE_API std::string text_of(const std::string& name, const Constant& constant);

}  // namespace spikeforge::nn
