#pragma once
#include "csrc/nir/value.h"

#include <string>

namespace spikeforge::nir {

// A tree of values as an HDF5 file that version 1.6 and later read: strings of variable length in UTF-8, booleans as
// h5py writes them, numbers little-endian. compression: deflate, 0 to 9. Throws Error or std::runtime_error.
void write_tree(const Group& root, const std::string& file, int compression);

}  // namespace spikeforge::nir
