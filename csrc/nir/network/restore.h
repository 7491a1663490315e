// What NIR cannot say, and spikeforge therefore writes into a node's metadata, in a group "spikeforge": the module with
// its constants in steps, its reset, comparison and surrogate. Other programs may leave it aside.
#pragma once
#include "csrc/nir/network/cell.h"
#include "csrc/nn/part.h"

namespace spikeforge::nir {

// A neuron of spikeforge::nn (IF, LIF, PLIF, CubaLIF, LI, or one that came from a NIR graph) as a node, with these
// metadata; nothing for other modules. Neurons have `shape`. Throws Error, without a node's name, for what NIR cannot
// express. `lost` is given what other programs will do otherwise, in words.
std::optional<Node> node_of_neuron(const torch::nn::Module& module, const Shape& shape, double dt,
                                   std::vector<std::string>& lost);

// What stands in that group: of a neuron that came from a NIR graph, what differs from the defaults. Nothing for other
// modules.
std::optional<Group> notes_of_neuron(const torch::nn::Module& module);

// The neuron of spikeforge::nn that a node's metadata are of; nothing where they are of none. Throws where they say
// what no module takes.
std::optional<nn::Part> neuron_of_metadata(const Node& node, const ModuleOptions& options);

// The dt with which a graph's modules were exported, where the metadata say one.
std::optional<double> dt_of_metadata(const Graph& graph);

// A node's metadata without that group, which is written anew.
Group without_notes(Group metadata);

// The first step of a cycle that is cut after this node: the option says it, else the node's metadata, else it is
// zeros.
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
