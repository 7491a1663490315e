// An HDF5 file as a tree of values.
#pragma once
#include "csrc/nir/byte_source.h"
#include "csrc/nir/limits.h"
#include "csrc/nir/value.h"

#include <span>

namespace spikeforge::nir {

// All groups and datasets, members sorted by name, as h5py returns them. Attributes of groups with these names are
// members too, as one float64 each; others are skipped. Throws an Error with node and field by their place in the file
// for: links other than hard ones, a group that is linked twice (a cycle is one), data in other files, types that are
// neither numbers nor text, and sizes beyond the limits.
Group read_tree(const ByteSource& source, const Limits& limits, std::span<const char* const> attributes = {});

}  // namespace spikeforge::nir
