// Strings of variable length are stored in "global heap collections" of the file. They are read by this class, which
// checks every length: libhdf5 1.10 copies a heap object of any length into a buffer of the dataset's length. Format:
// HDF5 File Format Specification, section III.E.
#pragma once
#include "csrc/nir/byte_source.h"

#include <cstdint>
#include <map>
#include <string>

namespace spikeforge::nir {

class GlobalHeap {
 public:
  // `base` is the offset of the file's addresses; `size_of_lengths` is from the superblock, in bytes.
  GlobalHeap(const ByteSource& source, std::uint64_t base, std::size_t size_of_lengths)
      : source_(source), base_(base), length_size_(size_of_lengths) {}

  // Returns the object of a collection. Throws std::runtime_error if there is none of at least this length.
  std::string read(std::uint64_t address, std::uint32_t index, std::uint32_t length);

 private:
  struct Object {
    std::uint64_t offset, size;
  };
  using Collection = std::map<std::uint32_t, Object>;

  const Collection& collection(std::uint64_t address);

  const ByteSource& source_;
  std::uint64_t base_;
  std::size_t length_size_;
  std::map<std::uint64_t, Collection> collections_;
  std::uint64_t walked_ = 0;
};

// Reads an unsigned little-endian integer of at most 8 bytes.
std::uint64_t little_endian(const std::byte* bytes, std::size_t size);

}  // namespace spikeforge::nir
