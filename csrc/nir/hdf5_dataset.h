// Reads one dataset of an HDF5 file as an Array or as Strings.
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
  std::uint64_t base = 0;  // the offset of the file's addresses
  std::size_t size_of_addresses = 8;
  GlobalHeap heap;
  std::uint64_t bytes_left = 0;

  // Subtracts from the limit. Throws if the remainder is insufficient.
  void take(std::uint64_t bytes);
};

// Reads a dataset. All its metadata are checked before memory is allocated or data are read. libhdf5 reads no data
// (except compact datasets and szip). Throws std::runtime_error with the reason.
Value read_dataset(hid_t dataset, ReadingState& state);

}  // namespace spikeforge::nir
