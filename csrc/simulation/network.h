// Simulated networks of populations: neurons of any kind, projections with delays, drives and recordings
// (docs/networks.md).
//
//   Network network({.seed = 1});
//   const Population excitatory = network.populate("excitatory", 800, neuron, {{"leak", 0.99}});
//   const Population inhibitory = network.populate("inhibitory", 200, neuron, {{"leak", at::rand({200})}});
//   network.project(excitatory, inhibitory, {.rule = "fixed_in_degree", .amount = 80,
//                                            .weight = {.law = "normal", .first = 0.3, .second = 0.03, .low = 0},
//                                            .delay = {.first = 15}});
//   network.drive(excitatory, 1.0, {.weight = 0.35});
//   const Recording recording = simulate(network, 1000, {.states = {{excitatory, "v", {0, 1}}}});
//
// A step reads the sums that arrive in it, adds currents and drive, steps all neurons, and sends their spikes: a spike
// of step t over a connection of delay d is an input of step t + d. Errors are c10::ValueError and c10::TypeError, and
// c10::Error for calls after the network was built; a call that throws has no effect. Arguments are copied. Only one
// thread at a time may use a network.
#pragma once

#include "csrc/base/export.h"
#include "csrc/simulation/ranks.h"
#include "ops/connect.h"
#include "ops/traced.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace spikeforge {

namespace simulation {
struct Description;
class Running;
}  // namespace simulation

struct NetworkOptions {
  std::int64_t seed = 0;                                      // of connections, and of random input by default
  std::optional<at::ScalarType> dtype = std::nullopt;         // of states and values in flight: float32 or float64
  std::optional<at::ScalarType> weight_dtype = std::nullopt;  // e.g. float16 to halve their memory; by default dtype
  c10::Device device = c10::kCPU;
  bool deterministic = false;  // the same bits in every run on a GPU too
  // The ranks that share the network: all ranks describe the same network, and each has some of its neurons and their
  // incoming connections. Calls that build or simulate the network, state() and load_state() are collective
  // (docs/scaling.md). Null: one process.
  std::shared_ptr<Ranks> ranks = nullptr;
  // Copies of the network with the same connections, which run together, such as trials or values of a parameter. A
  // copy has the results of a network of one copy with its noise seed. Connections that learn differ between copies.
  std::int64_t copies = 1;
  // The seeds of drives, and of neurons that draw random numbers: one for each copy. By default seed, seed + 1, ...
  std::vector<std::int64_t> noise_seeds = {};
};

// Neurons begin, ..., end - 1 of a network, which differ only in their indices.
struct Population {
  std::string name;
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Population&) const = default;
};

// A number for all neurons of a population, or a tensor [size]. If the network has copies, [copies, 1] and
// [copies, size] are also allowed.
class SPIKEFORGE_API PerNeuron {
 public:
  PerNeuron(double number);       // NOLINT(google-explicit-constructor)
  PerNeuron(at::Tensor numbers);  // NOLINT(google-explicit-constructor)

  bool is_number() const { return numbers_.dim() == 0; }
  bool has_copies() const { return numbers_.dim() == 2; }
  const at::Tensor& tensor() const { return numbers_; }  // 0-dimensional for a scalar

 private:
  at::Tensor numbers_;
};
using NamedNumbers = std::map<std::string, PerNeuron>;

// `into` is the name of an input of the targets' neuron; the default is the first input. Neurons for which a tensor of
// weights is 0 have no input from the drive, and its rates there are ignored.
struct DriveOptions {
  PerNeuron weight = 1;
  std::string into = {};
};

// The learning rule of a projection, as synapse text (docs/plasticity.md), with a value for each of its parameters.
struct Plasticity {
  std::string rule;
  std::map<std::string, double> params = {};
};

// The connections of a projection that learns. Rows are its sources and columns its targets, both from 0. The tensors
// share memory with the network; weights, the first of the states, may be written between steps.
struct Learned {
  Connectivity matrix;
  std::vector<std::pair<std::string, at::Tensor>> states;  // [connections] each
  std::vector<std::pair<std::string, at::Tensor>> traces;  // [sources] or [targets] each
};

// Input of neurons in the steps of one call, in addition to drives and currents: a tensor `values`, [steps, size] for
// all copies or [steps, copies, size], where size is that of the population or, if they are given, the number of
// `neurons`; or events, at `steps` (of the call, from 0), `neurons` (of the population) and `copies` (undefined: all),
// all [events], with `values` [events] or a 0-dimensional one for all. Several inputs of one neuron in a step are
// added.
struct StepInput {
  Population population;
  std::string into = {};  // the name of an input of the neuron; the default is the first
  at::Tensor values;
  at::Tensor steps = {}, neurons = {}, copies = {};
};

struct Recording;

class SPIKEFORGE_API Network {
 public:
  explicit Network(const NetworkOptions& options = {});
  Network(Network&&) noexcept;
  Network& operator=(Network&&) noexcept;
  ~Network();

  // Adds `size` neurons; a neuron fires when its first output is above 0. Throws ValueError if that output is known to
  // be graded (spike_output.h). Projections and drives target their inputs.
  // `params` has every parameter of the neuron, `states` the initial values that differ from those of the neuron. Each
  // rank has an equal share of the neurons, assigned round-robin, but all populations of an area are on one rank.
  // Spikes between areas, and to and from populations without an area, are summed separately from those within an area,
  // so that a network with areas has the same results on any number of ranks.
  Population populate(const std::string& name, std::int64_t size, const Neuron& neuron, const NamedNumbers& params = {},
                      const NamedNumbers& states = {}, const std::string& area = {});

  // Connects two populations with the rule, weights and delays of `how`; its ranges are ignored (connect.h). Delays,
  // including the minimum of a law, are at least one step.
  void project(const Population& sources, const Population& targets, const Projection& how,
               const std::string& into = {});

  // The same with connections that learn; returns the index of the projection for `learned`. A spike acts on a
  // connection in the step in which it arrives: the rule is applied, and the sent value is computed, in that step.
  // Initial weights must be within the bounds to which events clamp them.
  std::size_t project(const Population& sources, const Population& targets, const Projection& how,
                      const Plasticity& plasticity, const std::string& into = {});

  // Returns the state of a plastic projection of a copy after the last step. Builds the network.
  Learned learned(std::size_t projection, std::int64_t copy = 0);

  // Sets the signal with this name, from the next step until the next call, for all rules that use it: a scalar, or one
  // value for each target if all projections with this signal have the same number of targets. If all values are 0, the
  // signal is absent. If an error occurs, none of several signals is set. Builds the network.
  void modulate(const std::string& signal, const PerNeuron& value) { modulate({{signal, value}}); }
  void modulate(const NamedNumbers& signals);

  // Adds to each neuron in each step `weight` times a Poisson-distributed number with mean `rate`. The same seed gives
  // the same numbers on every device and for any number of threads: they are drawn by Philox from drive, neuron and
  // step.
  // Returns the index of the drive for set_drive, which changes the rate for the following steps.
  std::size_t drive(const Population& targets, const PerNeuron& rate, const DriveOptions& options = {});
  void set_drive(std::size_t drive, const PerNeuron& rate);

  // Adds a constant to an input in each step. Returns its index for set_current.
  std::size_t inject(const Population& targets, const PerNeuron& current, const std::string& into = {});
  void set_current(std::size_t current, const PerNeuron& value);

  // Runs steps as simulate does, and returns the spikes on the network's device: bool [steps, size()], or [steps,
  // copies, size()] if there are copies. It is faster than simulate for few steps, and does not synchronise with a GPU
  // unless an input has events.
  at::Tensor step(std::int64_t steps, const std::vector<StepInput>& inputs = {});

  // Returns a state of the neurons of a population (with ranks, of own neurons), which shares memory with the network,
  // and a copy of a parameter: [size], or [copies, size] if there are copies. Both build the network.
  at::Tensor state(const Population& population, const std::string& name);
  at::Tensor param(const Population& population, const std::string& name);
  void set_param(const Population& population, const std::string& name, const PerNeuron& value);

  // Suppresses the spikes of neurons, int64 [count], indices within the population, in one copy or in all: they are
  // neither sent nor recorded. Their states change as before. If `silent` is false, ends that.
  void silence(const Population& population, const at::Tensor& neurons, bool silent = true,
               std::optional<std::int64_t> copy = {});

  bool is_built() const { return running_ != nullptr; }

  // Draws the connections, if the first step has not done so; populations and projections cannot be added afterwards.
  // Rows are neurons; column k size() + j is input k of neuron j. On the CPU the columns of a row ascend. The tensors
  // share memory with the network: weights may be written between steps, the others must not be changed. With ranks or
  // areas, the result is this rank's part with local indices: `connectivity` returns it with those of the network.
  const Connectivity& build();

  // Returns a copy with the rows and columns of the whole network; with several ranks, the connections to this rank's
  // neurons. The columns of a row ascend.
  Connectivity connectivity();

  std::int64_t size() const;  // neurons of a copy
  std::int64_t step();        // the number of steps so far
  const std::vector<Population>& populations() const;
  const NetworkOptions& options() const;  // as passed, with dtypes filled in

  // Returns copies of everything that changes in a step, and builds the network. A network with the same populations,
  // projections and seed that loads them continues as this one, on any number of ranks. Signals are not included and
  // must be set again with modulate. load_state throws ValueError for other sizes or types, and for an illegal number
  // of steps.
  std::vector<at::Tensor> state();
  void load_state(at::TensorList state);  // the same on all ranks

  // Returns the tensors of the built network; builds it if necessary. For internal use.
  simulation::Running& running();

 private:
  friend SPIKEFORGE_API Recording gathered(const Network& network, const Recording& own);

  std::unique_ptr<simulation::Description> description_;
  std::unique_ptr<simulation::Running> running_;
};

// A state to record, and the neurons to record it of, by their indices within the population.
struct StateProbe {
  Population population;
  std::string state;
  std::vector<std::int64_t> neurons;
};

struct SimulateOptions {
  bool spikes = true;  // true to record spikes
  std::vector<StateProbe> states = {};
  std::vector<StepInput> inputs = {};
};

struct Recording {
  // int64 [spikes]: the step and the neuron of each spike, sorted by steps, copies and neurons. With several ranks,
  // they are the spikes of this rank's neurons.
  at::Tensor steps, neurons;
  // [steps, selected neurons] for each probe, or [steps, copies, selected neurons], after each step; the same on all
  // ranks.
  std::vector<at::Tensor> states;
  std::int64_t first_step = 0, step_count = 0;  // the steps of the call
  at::Tensor copies = {};                       // int64 [spikes]: the copy of each spike; undefined without copies

  // Returns the steps and neurons of the spikes of a population, with indices from 0, in one copy or in all.
  SPIKEFORGE_API std::pair<at::Tensor, at::Tensor> of(const Population& population,
                                                      std::optional<std::int64_t> copy = {}) const;
};

// Runs a network from the end of the last call. Throws ValueError for negative steps, and for a state or a neuron that
// does not exist; c10::Error if the ranks that share it do not make the same call, or if one has ended. After an
// exception in the middle of a step, all calls except load_state throw c10::Error.
SPIKEFORGE_API Recording simulate(Network& network, std::int64_t steps, const SimulateOptions& options = {});

// Gathers the recordings of all ranks for the same call, on all ranks. Throws ValueError if the calls differ.
SPIKEFORGE_API Recording gathered(const Network& network, const Recording& own);

}  // namespace spikeforge
