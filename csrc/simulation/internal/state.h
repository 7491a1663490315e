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

// Neighbouring populations of the same neuron, which are stepped together: own neurons begin, ..., end - 1.
struct Group {
  std::int64_t begin = 0, end = 0;
  std::int64_t whole_begin = 0, whole_end = 0;  // neurons of the whole network
  Neuron neuron;
  std::shared_ptr<const TracedCell> cell;
  std::vector<at::Tensor> states;  // [end - begin] each; never reallocated
  std::vector<at::Tensor> params;  // the same, or 0-dimensional
  std::optional<at::Tensor> seed;  // of a neuron that draws random numbers

  std::int64_t size() const { return end - begin; }
};

// The neurons of this rank that one call steps: first, ..., first + size - 1 of a group. Neuron `first` draws the
// random numbers of neuron `drawn` of the whole group.
struct GroupPart {
  std::int64_t first = 0, size = 0, drawn = 0;
};

// Poisson input of columns, at most one per column: overlapping drives are in different layers. A random number depends
// on column, step and seed.
struct PoissonLayer {
  at::Tensor rates, weights;  // [columns]; 0 without input
  at::Tensor seed;
};

// A recorded state: indices of own neurons within the group, on the network's device. `places`, on the CPU, are their
// positions among the requested neurons; no rank has more than `most`.
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

// Own columns of an input of one population, and the first of its neurons that they belong to.
struct OwnColumns {
  std::int64_t begin = 0, end = 0, first = 0;

  // Selects the values of own neurons from a scalar, or from one value per neuron of the population.
  at::Tensor of(const at::Tensor& numbers) const {
    return numbers.dim() == 0 ? numbers : numbers.narrow(0, first, end - begin);
  }
};

struct NetworkState {
  explicit NetworkState(const Description& description);
  NetworkState(NetworkState&&) = default;

  at::TensorOptions options() const { return ring.options(); }
  std::int64_t steps() const { return step.item<std::int64_t>(); }  // the number of steps so far
  std::vector<GroupPart> parts_of(const Group& group) const;
  // Throws ValueError for a population, a state or a neuron that does not exist.
  Probe probe(const StateProbe& requested) const;
  // Returns the columns of an input; the default is the first input.
  OwnColumns own_columns(const Population& population, const std::string& input) const;
  std::vector<Changing> changing() const;
  // Returns a copy of the connections with the rows and columns of the whole network.
  Connectivity connectivity() const;

  // Returns a state of own neurons of a population, which shares memory with the network, and a copy of a parameter.
  at::Tensor state_of(const Population& population, const std::string& name) const;
  at::Tensor param_of(const Population& population, const std::string& name) const;
  void set_param(const Population& population, const std::string& name, const at::Tensor& value);

  const Group& group_with(std::size_t population) const { return groups[group_of[population]]; }
  // Returns the index of a population. Throws ValueError if it does not exist.
  std::size_t number_of(const Population& population) const;

  Partition partition;
  std::vector<Population> populations;
  c10::Device device;
  bool is_deterministic = false;
  std::int64_t size = 0, inputs = 1, columns = 0;  // own neurons, inputs of a neuron, and their product
  std::int64_t block = 0;  // the number of steps between two exchanges of spikes among ranks or areas; 0 without them
  int doublings = 0;       // for the entry that accounts for the weights of other ranks (operator_steps.cpp)
  std::vector<Group> groups;
  std::vector<std::size_t> group_of;  // the group of each population
  std::vector<PoissonLayer> drives;
  // The first rows are own neurons, for connections within areas and on a single rank. If there are connections between
  // areas or ranks, rows for all neurons follow, and a row without connections.
  Connectivity matrix;
  at::Tensor near;  // int32 [size], on a GPU: the number of connections of delay 1 at the front of a row
  std::deque<PlasticConnections> plastic;
  at::Tensor ring;      // [slots, columns]: values in flight
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
