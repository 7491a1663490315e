// Simulated networks of populations: neurons of any kind, projections with delays, drives, and recordings
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
// A step takes the sums that arrive now, adds currents and drive, steps all neurons, and sends their spikes: a
// spike of step t over a connection of delay d is input of step t + d. Errors are c10::ValueError and c10::TypeError,
// and c10::Error for calls that come too late; a call that throws has changed nothing. Arguments are copied. One thread
// at a time may use a network.
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
  std::int64_t seed = 0;                                      // of connections, drive, and neurons that draw
  std::optional<at::ScalarType> dtype = std::nullopt;         // of states and values in flight: float32 or float64
  std::optional<at::ScalarType> weight_dtype = std::nullopt;  // e.g. float16 to halve their memory; by default dtype
  c10::Device device = c10::kCPU;
  bool deterministic = false;  // on a GPU the same bits at every run
  // The ranks that share the network: all ranks describe the same network; each has some of its neurons, and their
  // incoming connections. Building and simulating it, its state and load_state are collective calls (docs/scaling.md).
  // Null: one process.
  std::shared_ptr<Ranks> ranks = nullptr;
};

// Neurons begin, ..., end - 1 of a network, which differ only in their indices.
struct Population {
  std::string name;
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Population&) const = default;
};

// A number for all neurons of a population, or a tensor [size].
class SPIKEFORGE_API PerNeuron {
 public:
  PerNeuron(double number);       // NOLINT(google-explicit-constructor)
  PerNeuron(at::Tensor numbers);  // NOLINT(google-explicit-constructor)

  bool is_number() const { return numbers_.dim() == 0; }
  const at::Tensor& tensor() const { return numbers_; }  // 0-dimensional of a number

 private:
  at::Tensor numbers_;
};
using NamedNumbers = std::map<std::string, PerNeuron>;

// `into` is the input of the targets' neuron; by default its first.
struct DriveOptions {
  double weight = 1;
  std::string into = {};
};

// A rule by which a projection learns, as synapse text (docs/plasticity.md), with a number for each of its parameters.
struct Plasticity {
  std::string rule;
  std::map<std::string, double> params = {};
};

// The connections of a projection that learns: rows are its sources and columns its targets, both from 0. Tensors are
// the network's own; weights, the first of the states, may be written between steps.
struct Learned {
  Connectivity matrix;
  std::vector<std::pair<std::string, at::Tensor>> states;  // [connections] each
  std::vector<std::pair<std::string, at::Tensor>> traces;  // [sources] or [targets] each
};

struct Recording;

class SPIKEFORGE_API Network {
 public:
  explicit Network(const NetworkOptions& options = {});
  Network(Network&&) noexcept;
  Network& operator=(Network&&) noexcept;
  ~Network();

  // Adds `size` neurons; a neuron fires when its first output is above 0. Projections and drives target their inputs.
  // `params` has every parameter of the neuron, `states` the states whose initial values differ from the neuron's. Each
  // rank has an equal share of them, round-robin; but all populations of an area are on one rank. Spikes between areas,
  // and to and from populations without an area, are summed separately from those within an area: with areas a network
  // gives the same steps on any number of ranks.
  Population populate(const std::string& name, std::int64_t size, const Neuron& neuron, const NamedNumbers& params = {},
                      const NamedNumbers& states = {}, const std::string& area = {});

  // Connects two populations: the rule, weights and delays of `how`, whose ranges are not read (connect.h). A delay is
  // at least one step, also the least that a law may give.
  void project(const Population& sources, const Population& targets, const Projection& how,
               const std::string& into = {});

  // The same with connections that learn; returns the number of the projection, for `learned`. A spike reaches a
  // connection when it arrives: what it sends, and what the rule makes of it, is of that step. Weights start within the
  // bounds that events clamp them to.
  std::size_t project(const Population& sources, const Population& targets, const Projection& how,
                      const Plasticity& plasticity, const std::string& into = {});

  // The state of a plastic projection after the last step; builds the network.
  Learned learned(std::size_t projection);

  // Sets a signal of the rules with this name, from the next step on until the next call: a number, or one for each
  // target if all projections that have it have the same number of targets. All 0: the signal is absent. Several
  // signals are set together, or none of them is. Builds the network.
  void modulate(const std::string& signal, const PerNeuron& value) { modulate({{signal, value}}); }
  void modulate(const NamedNumbers& signals);

  // In each step a neuron gets `weight` times a Poisson number of mean `rate`. The same seed gives the same numbers
  // on every device and for any number of threads: they are Philox's, of drive, neuron and step.
  void drive(const Population& targets, const PerNeuron& rate, const DriveOptions& options = {});

  // Adds a constant to an input in each step.
  void inject(const Population& targets, const PerNeuron& current, const std::string& into = {});

  // Draws the connections, which the first step does otherwise; nothing can be added then. Rows are neurons; column k
  // size() + j is input k of neuron j. On the CPU the columns of a row ascend. The tensors are the network's own:
  // weights may be written between steps, the others must not be. With ranks or areas this is this rank's part, in its
  // own numbers: `connectivity` returns it in the network's.
  const Connectivity& build();

  // A copy of the same with rows and columns of the whole network; of several ranks the connections to this one's
  // neurons. A row's columns ascend.
  Connectivity connectivity();

  std::int64_t size() const;  // neurons
  std::int64_t step();        // steps so far
  const std::vector<Population>& populations() const;
  const NetworkOptions& options() const;  // as given, with dtypes

  // Everything that changes in a step: a network with the same populations, projections and seed goes on with it as
  // this one does, on any number of ranks. Signals are not part of it: modulate gives them again. Copies, and builds
  // the network. load_state throws ValueError for other sizes or types, and for a number of steps that is none.
  std::vector<at::Tensor> state();
  void load_state(at::TensorList state);  // the same on all ranks

  // The tensors of a network under way; builds it. For what is written by steps, not for users.
  simulation::Running& running();

 private:
  friend SPIKEFORGE_API Recording gathered(const Network& network, const Recording& own);

  std::unique_ptr<simulation::Description> description_;
  std::unique_ptr<simulation::Running> running_;
};

// A recorded state of neurons, whose indices count within the population.
struct StateProbe {
  Population population;
  std::string state;
  std::vector<std::int64_t> neurons;
};

struct SimulateOptions {
  bool spikes = true;  // whether they are recorded
  std::vector<StateProbe> states = {};
};

struct Recording {
  // int64 [spikes], by steps and then by neurons: the step and the neuron of each spike; of several
  at::Tensor steps, neurons;
  // ranks those of this one's neurons
  std::vector<at::Tensor> states;  // [steps of the call, neurons chosen] for each probe, after each step; the same on
                                   // all ranks
  std::int64_t first_step = 0, step_count = 0;  // of the call

  // The steps and neurons of a population, whose first neuron is 0 then.
  SPIKEFORGE_API std::pair<at::Tensor, at::Tensor> of(const Population& population) const;
};

// Runs a network from the end of the last call. Throws ValueError for negative steps, and for a state or a neuron that
// does not exist; c10::Error if the ranks that share it do not make the same call, or one has ended. An exception in
// the middle of a step leaves a network that needs load_state; other calls throw c10::Error then.
SPIKEFORGE_API Recording simulate(Network& network, std::int64_t steps, const SimulateOptions& options = {});

// The recordings of all ranks from the same call, on all of them. Throws ValueError if the calls differ.
SPIKEFORGE_API Recording gathered(const Network& network, const Recording& own);

}  // namespace spikeforge
