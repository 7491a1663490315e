// What NIR cannot say, and spikeforge therefore writes into a node's metadata, in a group "spikeforge": the module with
// its constants in steps, its reset, comparison and surrogate. Other programs may leave it aside.
#pragma once
#include <spikeforge/nir/network/cell.h>
#include <spikeforge/nn/part.h>

namespace spikeforge::nir {

// A neuron of spikeforge::nn (IF, LIF, PLIF, CubaLIF, LI, or one that came from a NIR graph) as a node, with these
// metadata; nothing for other modules. Neurons have `shape`. Throws Error, without a node's name, for what NIR cannot
// express. `lost` is given what other programs will do otherwise, in words.
std::optional<Node> node_of_neuron(const torch::nn::Module& module, const Shape& shape, double dt,
                                   std::vector<std::string>& lost);

// The node as which the module of a node's metadata is exported; nothing where they are of no module.
std::optional<Node> node_of_metadata(const Node& node, const Shape& shape, double dt);

// What a node's cell depends on: the options, else the node's metadata, else the defaults.
CellOptions decide(const Node& node, const ModuleOptions& options);

// The module that was exported as this node; nothing where the metadata say nothing, where an option asks for something
// else, or where the node's fields are not those that it is exported with: dt is another, or somebody has changed them.
std::optional<nn::Part> restore(const Node& node, const Shape& shape, const ModuleOptions& options);

}  // namespace spikeforge::nir
