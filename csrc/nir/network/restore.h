// Properties of a module that NIR cannot express, which are stored in a node's metadata, in a group "spikeforge": the
// kind of module, its constants in steps, its reset, comparison and surrogate. Other programs may ignore them.
#pragma once
#include "csrc/nir/network/cell.h"
#include "csrc/nn/part.h"

namespace spikeforge::nir {

// Converts a neuron of spikeforge::nn (IF, LIF, PLIF, CubaLIF, LI, or one imported from a NIR graph) to a node with
// these metadata. Returns nullopt for other modules. `shape` is the shape of the neurons. Throws Error, without the
// name of a node, if NIR cannot express the neuron. Descriptions of the properties that other programs will not
// reproduce are added to `lost`.
std::optional<Node> node_of_neuron(const torch::nn::Module& module, const Shape& shape, double dt,
                                   std::vector<std::string>& lost);

// Returns the contents of that group: for a neuron imported from a NIR graph, the options that differ from the
// defaults. Returns nullopt for other modules.
std::optional<Group> notes_of_neuron(const torch::nn::Module& module);

// Returns the neuron of spikeforge::nn that a node's metadata describe, or nullopt if they describe none. Throws if the
// metadata have values that no module accepts.
std::optional<nn::Part> neuron_of_metadata(const Node& node, const ModuleOptions& options);

// Returns the dt with which a graph's modules were exported, if the metadata have it.
std::optional<double> dt_of_metadata(const Graph& graph);

// Returns a node's metadata without that group, which is written again on export.
Group without_notes(Group metadata);

// Returns the start of a cycle that is cut after this node: from the option, else from the node's metadata, else zeros.
RecurrentStart decide_start(const Node& node, const ModuleOptions& options);
// Records in the node's metadata that the cycle starts with resting values.
void note_start(Node& node);

// Returns the options of a node's cell: those that are set, else those in the node's metadata, else the defaults.
CellOptions decide(const Node& node, const ModuleOptions& options);

// Returns the module that was exported as this node. Returns nullopt if the metadata do not describe one, if an option
// requires something else, or if the node's fields differ from those of the export, because of another dt or an edited
// file.
std::optional<nn::Part> restore(const Node& node, const Shape& shape, const ModuleOptions& options);

}  // namespace spikeforge::nir
