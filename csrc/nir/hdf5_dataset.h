// One dataset of an HDF5 file as an Array or as Strings.
#pragma once
#include "csrc/nir/byte_source.h"
#include "csrc/nir/global_heap.h"
#include "csrc/nir/hdf5_library.h"
#include "csrc/nir/limits.h"
#include "csrc/nir/value.h"

namespace spikeforge::nir {

// The resources that reading a file has used, and its source.
struct ReadingState {
  const ByteSource& source;
  const Limits& limits;
  std::uint64_t base = 0;  // where the file's own addresses begin
  std::size_t size_of_addresses = 8;
  GlobalHeap heap;
  std::uint64_t bytes_left = 0;

  // Throws where it is more than is left.
  void take(std::uint64_t bytes);
};

// All metadata of the dataset are checked before memory is allocated or data are read; libhdf5 reads
// none of them (but small ones that lie within their header, and szip). Throws std::runtime_error with the reason.
Value read_dataset(hid_t dataset, ReadingState& state);

}  // namespace spikeforge::nir
