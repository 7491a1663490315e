// The tensors of a built network. Engines (engine.h) change them step by step.
#pragma once

#include "csrc/simulation/internal/description.h"
#include "csrc/simulation/internal/partition.h"
#include "csrc/simulation/internal/plastic.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spikeforge::simulation {

class CallGuard;

// Neighbouring populations of the same neuron, which are stepped together: own neurons begin, ..., end - 1 of a copy.
struct Group {
  std::int64_t begin = 0, end = 0;
  std::int64_t whole_begin = 0, whole_end = 0;  // neurons of the whole network
  Neuron neuron;
  std::shared_ptr<const TracedCell> cell;
  std::vector<at::Tensor> states;  // [copies * size()] each; never reallocated
  std::vector<at::Tensor> params;  // the same, or 0-dimensional
  std::vector<at::Tensor> seeds;   // one for each copy of a neuron that draws random numbers

  std::int64_t size() const { return end - begin; }
};

// Neurons of one copy that one call steps: elements first, ..., first + size - 1 of the group's tensors, which are own
// neurons from `begin` on. Neuron `first` draws the random numbers of neuron `drawn` of the whole group.
struct GroupPart {
  std::int64_t first = 0, size = 0, drawn = 0, begin = 0, copy = 0;
};

// Poisson input of columns, at most one per column: overlapping drives are in different layers. A random number depends
// on the column within its copy, the step, and the seed of the copy.
struct PoissonLayer {
  at::Tensor rates, weights;  // [columns]; 0 without input
  std::vector<at::Tensor> seeds;
};

// A recorded state: indices into the group's tensors, on the network's device, first those of copy 0. `places`, on the
// CPU, are the positions of own neurons among the requested neurons; no rank has more than `most`.
struct Probe {
  const Group* group = nullptr;
  std::size_t state = 0;
  at::Tensor neurons, places;
  std::int64_t requested = 0, most = 0;
};

// A tensor that changes in a step. `places` are the indices of its last dimension's elements in the whole network;
// undefined if all ranks have the same tensor.
struct Changing {
  at::Tensor tensor, places;
  std::int64_t whole = 0;
};

// Own columns of an input of one population within a copy, and the first of its neurons that they belong to.
struct OwnColumns {
  std::int64_t begin = 0, end = 0, first = 0;

  // Selects the values of own neurons from a scalar, or from values whose last dimension is one neuron for all, or the
  // neurons of the population.
  at::Tensor of(const at::Tensor& numbers) const {
    return numbers.dim() == 0 || numbers.size(-1) == 1 ? numbers : numbers.narrow(-1, first, end - begin);
  }
};

// Copies have the same connections. Neuron j of copy c has index c * copy_size + j, and the column of its input k is
// c * copy_columns + k * copy_size + j.
struct NetworkState {
  explicit NetworkState(const Description& description);
  NetworkState(NetworkState&&) = default;

  at::TensorOptions options() const { return ring.options(); }
  std::int64_t steps() const { return step.item<std::int64_t>(); }  // the number of steps so far
  std::vector<GroupPart> parts_of(const Group& group) const;
  // Returns the elements of own columns in a tensor [columns]: [copies, columns], which shares memory with it.
  at::Tensor of_columns(const at::Tensor& all, const OwnColumns& own) const {
    return all.view({copies, copy_columns}).slice(1, own.begin, own.end);
  }
  // Splits the last dimension of values of all copies into [copies, elements of a copy] if there are copies.
  at::Tensor by_copies(const at::Tensor& values) const {
    return copies == 1 ? values : values.unflatten(-1, {copies, values.size(-1) / copies});
  }
  // Throws ValueError for a population, a state or a neuron that does not exist.
  Probe probe(const StateProbe& requested) const;
  // Returns the columns of an input; the default is the first input.
  OwnColumns own_columns(const Population& population, const std::string& input) const;
  std::vector<Changing> changing() const;
  // Returns a number that changes if an operation of torch writes states or sums in flight.
  std::uint64_t version() const;
  // Returns a copy of the connections with the rows and columns of the whole network.
  Connectivity connectivity() const;

  // Returns a state of own neurons of a population, which shares memory with the network, and a copy of a parameter.
  at::Tensor state_of(const Population& population, const std::string& name) const;
  at::Tensor param_of(const Population& population, const std::string& name) const;
  void set_param(const Population& population, const std::string& name, const at::Tensor& value);

  // Throws ValueError for a copy that does not exist.
  void check_copy(std::int64_t copy) const;
  PlasticConnections& plastic_of(std::size_t projection, std::int64_t copy) {
    return plastic[projection * static_cast<std::size_t>(copies) + static_cast<std::size_t>(copy)];
  }
  // Returns the index of the neuron of an element of a group's tensors.
  std::int64_t neuron_of(const Group& group, std::int64_t element) const {
    return element / group.size() * copy_size + group.begin + element % group.size();
  }
  std::int64_t copy_of(std::int64_t neuron) const { return copies == 1 ? 0 : neuron / copy_size; }

  const Group& group_with(std::size_t population) const { return groups[group_of[population]]; }
  // Returns the index of a population. Throws ValueError if it does not exist.
  std::size_t number_of(const Population& population) const;

  Partition partition;
  std::vector<Population> populations;
  c10::Device device;
  bool is_deterministic = false;
  std::int64_t copies = 1, inputs = 1;
  std::int64_t copy_size = 0, copy_columns = 0;  // own neurons of a copy, and that times the inputs
  std::int64_t size = 0, columns = 0;            // the same of all copies
  std::int64_t block = 0;  // the number of steps between two exchanges of spikes among ranks or areas; 0 without them
  int doublings = 0;       // for the entry that accounts for the weights of other ranks (operator_steps.cpp)
  std::vector<Group> groups;
  std::vector<std::size_t> group_of;  // the group of each population
  std::vector<PoissonLayer> drives;
  // The connections of a copy. The first rows are own neurons, for connections within areas and on a single rank. If
  // there are connections between areas or ranks, rows for all neurons follow, and a row without connections.
  Connectivity matrix;
  at::Tensor near;  // int32 [size], on a GPU: the number of connections of delay 1 at the front of a row
  std::deque<PlasticConnections> plastic;  // [projections, copies]
  at::Tensor ring;                         // [slots, columns]: values in flight
  at::Tensor between;   // the same between areas, if there are also connections within areas; else undefined
  at::Tensor step;      // int64, 0-dimensional, on the device
  at::Tensor spikes;    // [size], of the last step
  at::Tensor current;   // [columns]; undefined if there is none
  at::Tensor silenced;  // bool [size]: neurons whose spikes are suppressed; undefined if there are none
};

OwnColumns own_columns(const Targets& targets, const NetworkState& state);

// Set the drives and currents of a description.
void set_drives(NetworkState& state, const Description& description);
void set_currents(NetworkState& state, const Description& description);

// Draws the connections, and allocates the tensors. Collective.
NetworkState build_state(const Description& description, CallGuard& guard);

}  // namespace spikeforge::simulation
