// The base of all modules with a state over time.
//
// A module maps sequences to sequences, time first: x_seq is [T, *shape]. `step(x)` is `forward` of one step, so T
// steps, one `forward` over all of them and `forward` in chunks give the same bits. Values that it keeps between calls
// are its states, by name. They are tensors with their history: gradients flow through calls until detach_state(). A
// state does not exist before the first call or set_state(), nor after reset().
//
// A module with the option `persistent_state(true)` registers its states as buffers, so that save() and load() include
// them (a buffer of shape [0] represents a state that does not exist); otherwise they are not part of a checkpoint.
// They follow to() either way: floating-point states take the type, or float32 for half types. Integers, buffers too,
// stay integers. clone() copies them, without their history.
//
// Errors are c10::ValueError and c10::TypeError and begin with the module: "LIF 'hidden.lif': ...". Input whose shape,
// type or device is not that of the states is one of them, and so are samples (samples.h) that a module does not
// support.
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
  // [T, *shape] to [T, ...]: the first output of a module with one input. With `samples` x_seq is [T, B, *shape].
  at::Tensor forward(const at::Tensor& x_seq, const Samples& samples = {});
  // [*shape] to [...].
  at::Tensor step(const at::Tensor& x);
  // All inputs to all outputs, over `steps` steps: [steps, ...] each.
  Tensors run(at::TensorList inputs, std::int64_t steps, const Samples& samples = {});
  // True if the module and its parts support samples; otherwise a call with samples raises an error.
  virtual bool takes_samples() const { return state_names().empty(); }

  // The outputs [1, ...] before the first step for these inputs [1, ...]: zeros for a module that has states or draws
  // random numbers. Its states and the generators stay as they are.
  virtual Tensors at_rest(at::TensorList inputs);
  // True if a call draws random numbers.
  virtual bool draws() const { return false; }

  virtual Names input_names() const { return {"in"}; }
  virtual Names output_names() const { return {"out"}; }
  virtual Names state_names() const { return {}; }

  // Forgets all states, here and in every module below.
  void reset();
  // Cuts their history: the next backward pass ends here.
  void detach_state();

  // The states that exist, here ("v") and below ("hidden.lif.v").
  NamedTensors state() const;
  // One of them. A write into it is seen by the next step.
  at::Tensor state(const std::string& name) const;
  // Takes the tensor itself, with its history: an initial state can be learned. Undefined: as after reset().
  void set_state(const std::string& name, at::Tensor value);

  // State number i of state_names(); undefined: there is none.
  virtual at::Tensor own_state(std::size_t /*i*/) const { return {}; }

  // The states after each of the last call's steps, [T, *shape]. Kept only while `store_states` is on.
  void store_states(bool on) { store_states_ = on; }
  at::Tensor state_sequence(const std::string& name) const;

  // Its name in errors; containers set it to the path of the module.
  const std::string& path() const { return path_; }
  virtual void set_path(const std::string& path) { path_ = path; }
  // "LIF", or "LIF 'hidden.lif'".
  std::string title() const;

  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const final;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) final;
  void to(torch::Dtype dtype, bool non_blocking = false) final;
  void to(torch::Device device, bool non_blocking = false) final;
  void load(torch::serialize::InputArchive& archive) final;

  // Adds to it from the next step on, for as long as it lives; monitor.h.
  void attach(const std::shared_ptr<Recording>& recording) { recordings_.push_back(recording); }
  // How to_torchscript writes it. c10::NotImplementedError where a class does not say.
  virtual Script script() const;
  // Says how many steps all recordings here and below are going to see, so that they allocate once.
  virtual void expect(std::int64_t steps);

 protected:
  // "LIF".
  virtual const char* kind() const = 0;
  // Runs over `steps` steps from the states, and leaves the last ones. The inputs are as many as input_names().
  virtual Tensors advance(at::TensorList inputs, std::int64_t steps) = 0;
  // A module as it was constructed; clone() copies the values into it.
  virtual std::shared_ptr<Stateful> fresh() const = 0;

  virtual void set_own_state(std::size_t /*i*/, at::Tensor /*value*/) {}
  // True if advance() stores the result of state_sequence(i); otherwise the module is stepped to record its states.
  virtual bool stores_states() const { return false; }
  virtual at::Tensor own_sequence(std::size_t /*i*/) const { return {}; }

  // Registers a state as a buffer; at construction, in the order of state_names().
  void make_persistent(const std::string& name);
  // Copies the states into their buffers, after they were replaced other than by set_state().
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
  Tensors buffers_of_states_;  // empty, or one for each state, which shares its storage
  std::vector<std::weak_ptr<Recording>> recordings_;
  bool store_states_ = false;
};

// For modules of any kind: of all stateful modules at and below `module`.
SPIKEFORGE_API void reset_state(torch::nn::Module& module);
SPIKEFORGE_API void detach_state(torch::nn::Module& module);

// float32 beside half types, else the type itself.
SPIKEFORGE_API at::ScalarType state_type(at::ScalarType input);

}  // namespace spikeforge::nn
