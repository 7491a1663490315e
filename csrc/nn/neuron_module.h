// What all neurons share: states of the shape of one step of input, checked against it, and their sequences.
#pragma once

#include <spikeforge/nn/constant.h>
#include <spikeforge/nn/stateful.h>
#include <spikeforge/ops/recurrent.h>

namespace spikeforge::nn {

class SPIKEFORGE_API NeuronModule : public Stateful {
 public:
  Names state_names() const override { return names_; }
  at::Tensor own_state(std::size_t i) const override { return states_[i]; }

  // Of a learned constant; none of others.
  Bounds bounds_of(const std::string& name) const;
  // What the neuron takes for a constant that has this value: one within its bounds.
  Param bounded(const std::string& name, const Param& value) const;

  // Whether its equations are a cell by themselves, which run_recurrent() needs.
  virtual bool is_cell() const { return false; }
  // As run(), with its first output coming back to it through w, as recurrent_run says.
  Tensors run_recurrent(at::TensorList inputs, std::int64_t steps, const at::Tensor& w,
                        const RecurrentOptions& options);

 protected:
  struct Results {
    Tensors outputs;
    Tensors states;  // the last ones, or with `store` their sequences
  };

  explicit NeuronModule(Names state_names, bool persistent_state);

  // The cell run as run() or run_recurrent() wants it.
  Results run_cell(const spikeforge::Neuron& cell, at::TensorList inputs, at::TensorList states, at::TensorList params,
                   bool store) const;
  bool is_recurrent() const { return w_ != nullptr; }

  // Refuses what no call takes, before the states are compared with it.
  virtual void check_input(const at::Tensor& /*x*/) const {}
  // One operator call. states: undefined where there is none.
  virtual Results call(at::TensorList inputs, const Tensors& states, bool store) const = 0;

  Tensors advance(at::TensorList inputs, std::int64_t steps) final;
  void set_own_state(std::size_t i, at::Tensor value) override { states_[i] = std::move(value); }
  bool stores_states() const override { return true; }
  at::Tensor own_sequence(std::size_t i) const override { return sequences_[i]; }

  // A copy of a tensor constant, registered as its kind wants; a number stays one unless it is to be learned. Throws
  // c10::ValueError where min is above max, or NaN is a bound.
  Param register_constant(const std::string& name, const Constant& constant);
  bool has_bounds() const { return !bounds_.empty(); }

 private:
  void check_live(const at::Tensor& x) const;

  Names names_;
  std::vector<std::pair<std::string, Bounds>> bounds_;  // of learned constants that have some
  Tensors states_, sequences_;
  const at::Tensor* w_ = nullptr;  // of the run_recurrent() that is under way
  const RecurrentOptions* recurrence_ = nullptr;
};

// "tau=2", "tau=[8]" for a tensor, "tau=[8] learned", "tau=[] learned in [1, inf]".
SPIKEFORGE_API std::string text_of(const std::string& name, const Constant& constant);

}  // namespace spikeforge::nn
