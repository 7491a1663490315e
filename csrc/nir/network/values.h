// The values of a NIR file for Python: a dict from the path of a value in the file to the value.
//
//   {"node/type": "NIRGraph", "node/nodes/lif/tau": tensor, "node/edges": [["input", "lif"], ["lif", "output"]], ...}
//
// A group without members is None. Empty lists of strings are empty tensors.
#pragma once
#include "csrc/nir/value.h"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

namespace spikeforge::nir {

c10::impl::GenericDict empty_dict();

c10::impl::GenericDict values_of(const Group& group);

// Throws Error for values that a file cannot contain.
Group group_of_values(const c10::impl::GenericDict& values);

}  // namespace spikeforge::nir
