// The description of a network before it is built.
#pragma once

#include "csrc/kernels/multistep/traced_cell.h"
#include "csrc/simulation/network.h"
#include "ops/common/plastic.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::simulation {

// An input of neighbouring neurons. It corresponds to the columns from `input` * size + begin on.
struct Targets {
  std::int64_t begin = 0, end = 0, input = 0;
};

struct DescribedPopulation {
  Neuron neuron;
  std::shared_ptr<const TracedCell> cell;
  std::vector<PerNeuron> states, params;  // complete, in the order of the cell
  std::string area;  // all its populations are on one rank; empty: each rank has a share of the population
};

struct DescribedConnections {
  Projection how;  // its strings are stored elsewhere; its targets are neurons

  // Called when the matrix contains the arrays.
  void forget_arrays() { how.source_indices = how.target_indices = how.weights = how.delays = at::Tensor(); }
};

struct DescribedProjection : DescribedConnections {
  std::int64_t input = 0;
  std::size_t sources = 0, targets = 0;  // indices of the populations
};

// A projection that learns.
struct DescribedPlastic : DescribedConnections {
  std::int64_t input = 0;
  std::shared_ptr<const ops::plastic::Rule> rule;
  std::vector<double> params;  // in the order of the rule
};

struct DescribedDrive {
  Population population;
  Targets targets;
  at::Tensor rates, weights;  // float64, on the CPU: [], or one for each neuron
};

struct DescribedCurrent {
  Population population;
  Targets targets;
  at::Tensor current;  // [], or one for each neuron
};

struct Description {
  NetworkOptions options;
  at::ScalarType dtype{}, weight_dtype{};
  std::vector<Population> populations;
  std::vector<DescribedPopulation> neurons;  // one per population
  std::vector<DescribedProjection> projections;
  std::vector<DescribedPlastic> plastic;
  std::vector<DescribedDrive> drives;
  std::vector<DescribedCurrent> currents;
  std::deque<std::string> names;  // the strings of the string_views in projections

  std::int64_t size() const { return populations.empty() ? 0 : populations.back().end; }
  std::int64_t inputs() const;  // the maximum number of inputs of a neuron; at least 1
  // Returns the seed of the random numbers that a copy draws.
  std::int64_t noise_seed(std::int64_t copy) const {
    const std::vector<std::int64_t>& seeds = options.noise_seeds;
    const auto given = static_cast<std::uint64_t>(options.seed), number = static_cast<std::uint64_t>(copy);
    return seeds.empty() ? static_cast<std::int64_t>(given + number) : seeds[static_cast<std::size_t>(copy)];
  }
  std::int64_t rank() const { return options.ranks == nullptr ? 0 : options.ranks->rank(); }
  std::int64_t ranks() const { return options.ranks == nullptr ? 1 : options.ranks->size(); }
  // Returns the index of this population. Throws ValueError if it belongs to another network.
  std::size_t number_of(const Population& population) const;
  std::string_view own(std::string_view name) { return names.emplace_back(name); }
};

// Lists names for a message.
std::string listed(const std::vector<std::string>& names);
std::vector<std::string> names_of_params(const Cell& cell);

// Checks that all ranks have the same library, torch and options, and describe the same network. Otherwise throws
// ValueError on all ranks, with a rank and its first difference. Returns a number that identifies the network on all
// ranks and is unique in this process.
std::int64_t check_alike(const Description& description);

}  // namespace spikeforge::simulation
