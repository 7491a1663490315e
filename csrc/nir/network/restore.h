// Properties of a module that NIR cannot express, which are stored in a node's metadata, in a group "spikeforge": the
// kind of module, its constants in steps, its reset, comparison and surrogate. Other programs may ignore them.
#pragma once
#include "csrc/nir/network/cell.h"
#include "csrc/nn/part.h"

namespace spikeforge::nir {

// A neuron of spikeforge::nn (IF, LIF, PLIF, CubaLIF, LI, or one that came from a NIR graph) as a node, with these
// metadata; nothing for other modules. Neurons have `shape`. Throws Error, without a node's name, for what NIR cannot
// express. `lost` is given what other programs will do otherwise, in words.
std::optional<Node> node_of_neuron(const torch::nn::Module& module, const Shape& shape, double dt,
                                   std::vector<std::string>& lost);

// Returns the contents of that group: for a neuron that came from a NIR graph, the options that differ from the
// defaults. Returns nullopt for other modules.
std::optional<Group> notes_of_neuron(const torch::nn::Module& module);

// Returns the neuron of spikeforge::nn that a node's metadata describe, or nullopt if they describe none. Throws if the
// metadata have values that no module accepts.
std::optional<nn::Part> neuron_of_metadata(const Node& node, const ModuleOptions& options);

// The dt with which a graph's modules were exported, if the metadata have it.
std::optional<double> dt_of_metadata(const Graph& graph);

// Returns a node's metadata without that group, which is written again on export.
Group without_notes(Group metadata);

// The values at the first step of a cycle that is cut after this node: from the option, else from the node's metadata,
// else zeros.
RecurrentStart decide_start(const Node& node, const ModuleOptions& options);
// Writes into the metadata that it brings what a silent network gives.
void note_start(Node& node);

// What a node's cell depends on: the options, else the node's metadata, else the defaults.
CellOptions decide(const Node& node, const ModuleOptions& options);

// The module that was exported as this node; nothing if the metadata do not describe one, if an option requires
// something else, or where the node's fields are not those that it is exported with: dt is another, or somebody has
// changed them.
std::optional<nn::Part> restore(const Node& node, const Shape& shape, const ModuleOptions& options);

}  // namespace spikeforge::nir
