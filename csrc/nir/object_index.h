// Checks the indices and the type of an HDF5 object in h5py's default layout before libhdf5 uses them: libhdf5 follows
// the addresses of B-trees, symbol tables and heaps without checks, and crashes or hangs on some that a damaged file
// may contain. Format: HDF5 File Format Specification, sections III.A.1, III.B, III.C, III.D and IV.A.
#pragma once
#include "csrc/nir/byte_source.h"

#include <cstdint>
#include <set>
#include <vector>

namespace spikeforge::nir {

// The contents of the superblock.
struct FileLayout {
  std::uint64_t base = 0;  // the offset of the file's addresses
  std::size_t address_size = 8, length_size = 8;
  unsigned group_tree_k = 16, symbols_k = 4, chunk_tree_k = 32;  // half the maximum number of entries per node
};

// Throws std::runtime_error for a superblock of version 0 or 1 with a driver information block. Only files that are
// split into several files have this block, for which libhdf5 allocates the declared size, up to 4 GiB. libhdf5 detects
// other faults, and newer superblocks have no such block.
void check_superblock(const ByteSource& source);

class ObjectIndexChecker {
 public:
  ObjectIndexChecker(const ByteSource& source, const FileLayout& layout) : source_(source), layout_(layout) {}

  // Checks the object whose header is at this address. Headers of the newer layout (from 1.8) are not checked: they
  // have checksums, which detect accidental damage. Throws std::runtime_error.
  void check(std::uint64_t header);

 private:
  struct Place {
    std::uint64_t address, size;
  };
  using Names = std::vector<std::byte>;

  class Bytes;
  std::vector<std::byte> raw_bytes(std::uint64_t address, std::uint64_t size);
  Bytes bytes_at(std::uint64_t address, std::uint64_t size);
  bool is_address(std::uint64_t address) const;
  bool is_undefined(std::uint64_t address) const;
  void visit_once(std::uint64_t address);

  void check_type(Bytes& bytes);
  void group(std::uint64_t tree, std::uint64_t heap);
  void group_tree(std::uint64_t address, int level, const Names& names);
  void symbols(std::uint64_t address, const Names& names);
  Names names_of_heap(std::uint64_t heap);
  void chunk_tree(std::uint64_t address, int level, std::size_t key_size);
  // Calls child(address, level below) for each child; level -1 means any level.
  template <class Child>
  void tree_node(std::uint64_t address, int type, int level, std::size_t key_size, unsigned k, Child&& child);

  const ByteSource& source_;
  FileLayout layout_;
  std::set<std::uint64_t> checked_;  // addresses of headers: a dataset may be linked twice
  std::set<std::uint64_t> visited_;  // addresses of nodes: each belongs to a single tree
  std::uint64_t walked_ = 0;         // bytes
};

}  // namespace spikeforge::nir
