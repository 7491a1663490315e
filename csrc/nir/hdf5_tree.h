// An HDF5 file as a tree of values.
#pragma once
#include "csrc/nir/byte_source.h"
#include "csrc/nir/error.h"
#include "csrc/nir/limits.h"
#include "csrc/nir/value.h"

#include <new>
#include <span>

namespace spikeforge::nir {

// Returns all groups and datasets, with members sorted by name, as h5py returns them. Attributes of groups with the
// given names are also members, as one float64 each; others are skipped. Throws an Error that names the node and the
// field by their path in the file if it finds a soft or external link, a group that is linked twice (such as a cycle),
// data in another file, a type that is neither a number nor text, or a size beyond the limits.
Group read_tree(const ByteSource& source, const Limits& limits, std::span<const char* const> attributes = {});

// Calls `read`, which reads the file of this name. Its exceptions become Errors that name the file.
template <class Read> auto read_file(const std::string& name, Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw error.in_file(name);
  } catch (const std::bad_alloc&) {
    throw Error(name, "", "", "there is not enough memory to read it");
  } catch (const std::runtime_error& error) {
    throw Error(name, "", "", error.what());
  }
}

}  // namespace spikeforge::nir
