// A graph as an attribute of the TorchScript module that was made of it, without the arrays that are the module's
// tensors: a table with a row for each value of the file that the graph would be. In Python's terms List[Tuple[path,
// type, shape, texts, bytes]]:
//
//   node/nodes/lif/type      text      []     ["LIF"]
//   node/nodes/w/weight      float32   [5,3]  ["w.weight"]                            the module's tensor of this name
//   node/nodes/lif/tau       float64   [5]    ["lif.tau", checksum, "rest"]  bytes    the same; the module rounds it
//   node/nodes/late/delay    float64   [5]    []                             bytes    the array itself
//   node/metadata/notes      group     []     []                                      an empty group
//
// What the module's type rounds away of an array (float64 in a float32 network) is kept beside it, and counts while the
// tensor has the checksum: an array that nobody has trained comes back as it was.
#pragma once
#include "csrc/nir/interpret.h"
#include "csrc/nn/composite.h"

#include <ATen/core/ivalue.h>

#include <functional>
#include <set>

namespace spikeforge::nir {

c10::TypePtr graph_table_type();

// network: what to_module made of the graph.
c10::IValue graph_table(const Graph& graph, const nn::CompositeImpl& network);

// The values of a graph as they were, or as the module has them now. tensor: the module's tensor of that name;
// undefined where there is none. Throws Error.
struct TableContents {
  Group file;                   // for graph_of
  std::set<std::string> noted;  // paths of nodes whose metadata are the module's tensors, and whose fields follow them
};
TableContents read_graph_table(const c10::IValue& table, const std::function<at::Tensor(const std::string&)>& tensor,
                               const Limits& limits);

}  // namespace spikeforge::nir
