// Reading NIR files: the exchange format of spiking networks, of any version from 0.0.1 on.
//
//   const nir::Graph graph = nir::read("network.nir");
//
// Files may be untrusted. Nothing outside the file is read, and memory is bounded by the limits; a graph that is
// not sound is refused with one Error that names file, node and field. Data are read by this library; much of the
// file's structure is read by libhdf5, whose parser has had faults: see SECURITY.md.
#pragma once
#include "csrc/nir/interpret.h"

#include <cstddef>
#include <span>
#include <string>

namespace spikeforge::nir {

SPIKEFORGE_API Graph read(const std::string& file, const Limits& limits = {}, Report* report = nullptr);

// The same for a file whose graph need not be sound: the report contains its defect.
SPIKEFORGE_API Graph read_to_look(const std::string& file, const Limits& limits, Report& report);

// The same of a file in memory, which errors call by this name.
SPIKEFORGE_API Graph read(std::span<const std::byte> bytes, const Limits& limits = {}, Report* report = nullptr,
                          const std::string& name = "bytes");

// libhdf5 is loaded when the first file is read or written: the file that SPIKEFORGE_HDF5 names, or the system's. This
// loads it now, from `file` where one is named. Throws std::runtime_error where it cannot.
SPIKEFORGE_API void load_hdf5(const std::string& file = "");

}  // namespace spikeforge::nir
