// A network as a list of its modules, for the conversion between C++ and Python modules in both directions. It has one
// dict for each module; a network precedes its parts:
//
//   {"path": "", "kind": "Composite", "sources": [...], "targets": [...], "delays": [...], "from_rest": [...],
//   "shapes":
//   [...], "labels/metadata/author": "...", "labels/nodes/a_b/name": "a.b", "labels/nodes/a_b/metadata/note": ...}
//   {"path": "dense", "kind": "Linear", "weight": tensor, "bias": tensor}
//   {"path": "lif", "kind": "LIF", "notes/tau": 2.0, "notes/v_threshold": tensor, "notes/learned": ["v_threshold"],
//   ...}
//   {"path": "cell", "kind": "Node", "type": "LIF", "text": "neuron LIF(x; v; ...) {...}", "dt": 1e-4, "notes/reset":
//   "zero",
//    "params/tau": tensor, "learned": [...]}
//
// Labels are those of GraphNetwork (node_modules.h), notes those of metadata (restore.h). Empty and inapplicable
// entries are omitted.
#pragma once
#include "csrc/nn/composite.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

namespace spikeforge::nir {

// Returns the description; its tensors share memory with the modules. Throws Error for a module without a NIR node.
c10::impl::GenericList description_of(const nn::Part& network);

// Returns the network of a description, whose modules share its tensors. Throws Error with the name of the module.
nn::Part part_of_description(const c10::impl::GenericList& rows);

}  // namespace spikeforge::nir
