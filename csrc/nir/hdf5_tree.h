// An HDF5 file as a tree of values.
#pragma once
#include "csrc/nir/byte_source.h"
#include "csrc/nir/limits.h"
#include "csrc/nir/value.h"

#include <span>

namespace spikeforge::nir {

// All groups and datasets, members sorted by name, as h5py returns them. Attributes of groups with these names are
// members too, as one float64 each; others are skipped. Throws an Error that names the node and the field by their path
// in the file if it finds a soft or external link, a group that is linked twice (such as a cycle), data in another
// file, a type that is neither a number nor text, or a size beyond the limits.
Group read_tree(const ByteSource& source, const Limits& limits, std::span<const char* const> attributes = {});

}  // namespace spikeforge::nir
