// The base of all modules with a state over time.
//
// A module maps sequences to sequences, time first: x_seq is [T, *shape]. `step(x)` is `forward` of one step, so T
// calls of step, one `forward` over all steps and `forward` in chunks give the same bits. The values that a module
// keeps between calls are its named states. They are tensors with autograd history: gradients flow through calls until
// detach_state(). A state does not exist before the first call or set_state(), nor after reset().
//
// A module with the option `persistent_state(true)` registers its states as buffers, so that save() and load() include
// them (a buffer of shape [0] represents a state that does not exist); otherwise they are not part of a checkpoint.
// They follow to() either way: floating-point states are converted to the type, or to float32 for half types. Integer
// states and buffers stay integers. clone() copies states without their history.
//
// Errors are c10::ValueError and c10::TypeError and begin with the module: "LIF 'hidden.lif': ...". Examples are inputs
// whose shape, type or device differs from that of the states, and samples (samples.h) in a module that does not
// support them.
#pragma once

#include "csrc/base/export.h"
#include "csrc/nn/samples.h"
#include "csrc/nn/script.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spikeforge::nn {

using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;
using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

class Recording;

class SPIKEFORGE_API Stateful : public torch::nn::Module {
 public:
  // Maps [T, *shape] to [T, ...], the first output, for a module with one input. With `samples`, x_seq is [T, B,
  // *shape].
  at::Tensor forward(const at::Tensor& x_seq, const Samples& samples = {});
  // Maps [*shape] to [...].
  at::Tensor step(const at::Tensor& x);
  // Maps all inputs to all outputs over `steps` steps: [steps, ...] each.
  Tensors run(at::TensorList inputs, std::int64_t steps, const Samples& samples = {});
  // True if the module and its parts support samples; otherwise a call with samples raises an error.
  virtual bool takes_samples() const { return state_names().empty(); }

  // Returns the outputs [1, ...] before the first step for these inputs [1, ...]: zeros for a module that has states or
  // draws random numbers. States and generators are not changed.
  virtual Tensors at_rest(at::TensorList inputs);
  // True if a call draws random numbers.
  virtual bool draws() const { return false; }

  virtual Names input_names() const { return {"in"}; }
  virtual Names output_names() const { return {"out"}; }
  virtual Names state_names() const { return {}; }

  // Removes all states of this module and of every module below.
  void reset();
  // Detaches the states from the graph: the next backward pass ends here.
  void detach_state();

  // Returns the existing states of this module ("v") and of modules below ("hidden.lif.v").
  NamedTensors state() const;
  // Returns one state. The next step uses values written into it.
  at::Tensor state(const std::string& name) const;
  // Stores the tensor itself, with its history, so that an initial state can be learned. An undefined tensor removes
  // the state.
  void set_state(const std::string& name, at::Tensor value);

  // Returns the state state_names()[i], or an undefined tensor if it does not exist.
  virtual at::Tensor own_state(std::size_t /*i*/) const { return {}; }

  // The states after each step of the last call, [T, *shape]. They are stored only while `store_states` is on.
  void store_states(bool on) { store_states_ = on; }
  at::Tensor state_sequence(const std::string& name) const;

  // The name in error messages; containers set it to the path of the module.
  const std::string& path() const { return path_; }
  virtual void set_path(const std::string& path) { path_ = path; }
  // Returns "LIF", or "LIF 'hidden.lif'".
  std::string title() const;

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const final;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) final;
  void to(torch::Dtype dtype, bool non_blocking = false) final;
  void to(torch::Device device, bool non_blocking = false) final;
  void load(torch::serialize::InputArchive& archive) final;

  // Records into it from the next step on, during its lifetime (monitor.h).
  void attach(const std::shared_ptr<Recording>& recording) { recordings_.push_back(recording); }
  // Describes the module for to_torchscript. Throws c10::NotImplementedError if a class does not override it.
  virtual Script script() const;
  // Sets the number of following steps for all recordings of this module and of modules below, so that they allocate
  // once.
  virtual void expect(std::int64_t steps);

 protected:
  // Returns the kind of the module, such as "LIF".
  virtual const char* kind() const = 0;
  // Runs `steps` steps from the current states, and stores the last states. There is one input for each of
  // input_names().
  virtual Tensors advance(at::TensorList inputs, std::int64_t steps) = 0;
  // Returns a newly constructed module, into which clone() copies the values.
  virtual std::shared_ptr<Stateful> fresh() const = 0;

  virtual void set_own_state(std::size_t /*i*/, at::Tensor /*value*/) {}
  // True if advance() stores the result of state_sequence(i); otherwise the module is stepped to record its states.
  virtual bool stores_states() const { return false; }
  virtual at::Tensor own_sequence(std::size_t /*i*/) const { return {}; }

  // Registers a state as a buffer. Called at construction, in the order of state_names().
  void make_persistent(const std::string& name);
  // Copies the states into their buffers, after states were replaced without set_state().
  void write_buffers();
  bool keeping_sequences() const { return store_states_; }
  // The samples of the current call.
  const Samples& samples() const { return samples_; }
  Samples samples_;

  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Samples())})

 private:
  friend class Recording;
  friend class ScopedSamples;

  void clone_(torch::nn::Module& from, const std::optional<torch::Device>& device) final;
  void assign(const Stateful& from);
  void read_buffers();
  template <class Move> void move_module(const Move& move);
  template <class To> void move_states(const To& to);
  Tensors run_and_record(at::TensorList inputs, std::int64_t steps);

  std::string path_;
  Tensors buffers_of_states_;  // empty, or one per state, with shared storage
  std::vector<std::weak_ptr<Recording>> recordings_;
  bool store_states_ = false;
};

// Resets all stateful modules at and below `module`, which may be of any kind.
SPIKEFORGE_API void reset_state(torch::nn::Module& module);
SPIKEFORGE_API void detach_state(torch::nn::Module& module);

// Returns float32 for half types, otherwise the type itself.
SPIKEFORGE_API at::ScalarType state_type(at::ScalarType input);

}  // namespace spikeforge::nn
