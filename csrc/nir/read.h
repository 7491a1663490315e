// Reads files of NIR, the exchange format of spiking networks, of any version from 0.0.1 on.
//
//   const nir::Graph graph = nir::read("network.nir");
//
// Files may be untrusted. Nothing outside the file is read, and memory is bounded by the limits; an invalid graph
// throws one Error with file, node and field. Data are read by this library, but much of the file's structure by
// libhdf5, whose parser has had vulnerabilities: see SECURITY.md.
#pragma once
#include "csrc/nir/interpret.h"

#include <cstddef>
#include <span>
#include <string>

namespace spikeforge::nir {

SPIKEFORGE_API Graph read(const std::string& file, const Limits& limits = {}, Report* report = nullptr);

// The same for a file whose graph may be invalid: the report contains its defect.
SPIKEFORGE_API Graph read_to_look(const std::string& file, const Limits& limits, Report& report);

// The same for a file in memory; errors contain the given name.
SPIKEFORGE_API Graph read(std::span<const std::byte> bytes, const Limits& limits = {}, Report* report = nullptr,
                          const std::string& name = "bytes");

// Loads libhdf5 now, from `file` if it is not empty. Otherwise it is loaded when the first file is read or written,
// from the file that SPIKEFORGE_HDF5 names or from the system. Throws std::runtime_error if it cannot be loaded.
SPIKEFORGE_API void load_hdf5(const std::string& file = "");

}  // namespace spikeforge::nir
