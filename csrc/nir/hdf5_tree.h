// An HDF5 file as a tree of values.
#pragma once
#include "csrc/nir/byte_source.h"
#include "csrc/nir/limits.h"
#include "csrc/nir/value.h"

#include <span>

namespace spikeforge::nir {

// All groups and datasets, members sorted by name, as h5py gives them. Of the attributes of groups, those of these
// names are members too, as one float64 each; others are left out. Refused, with an Error that names node and field by
// their place in the file: links other than hard ones, a group that is linked twice (a cycle is one), data in other
// files, types that are neither numbers nor text, and what is beyond the limits.
Group read_tree(const ByteSource& source, const Limits& limits, std::span<const char* const> attributes = {});

}  // namespace spikeforge::nir
