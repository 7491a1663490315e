// Compiled kernels in one file, for machines without NVRTC, or to avoid compilation at run time.
//
// They have the same keys as in the disk cache, and packs are searched first. A pack is valid only for the build of the
// library that wrote it: the key depends on the text of every device header.
#pragma once

#include "csrc/base/file_io.h"
#include "csrc/base/hash.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace spikeforge::jit {

// The message names the file and the problem.
struct PackError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct PackedKernel {
  Hash128 key;       // KernelCache::key(source, arch)
  std::string name;  // for people: "lif_forward sm_90"
  std::vector<char> image;
};

// Writes a pack under a temporary name, and then renames it: a failed write leaves an existing file unchanged. Throws
// PackError.
void write_pack(const std::string& path, std::span<const PackedKernel> kernels);

// An open pack: its index is in memory, images are read on demand.
class KernelPack {
 public:
  // Opens a pack. Throws PackError for a file that is not readable, damaged, or written by another build of the
  // library.
  explicit KernelPack(const std::string& path);

  std::size_t size() const { return places_.size(); }

  // Returns nullopt if the pack has no such kernel, or, with a warning, if its bytes are damaged.
  std::optional<std::vector<char>> find(const Hash128& key) const;

 private:
  struct Place {
    std::uint64_t offset, length;
    Hash128 checksum;
  };

  std::string path_;
  FileDescriptor file_;
  std::unordered_map<Hash128, Place, HashOfHash> places_;
};

// The packs of a process.
class KernelPacks {
 public:
  // Returns the packs of the process. Initially, these are the paths in SPIKEFORGE_KERNEL_PACK, separated by colons,
  // and libspikeforge.pack next to the library. A pack that is not readable causes a warning.
  static KernelPacks& get();

  // Adds a pack. Returns its number of kernels.
  std::size_t add(const std::string& path);

  // Searches the packs, starting with the one that was added last.
  std::optional<std::vector<char>> find(const Hash128& key) const;

 private:
  mutable std::mutex mutex_;
  std::vector<KernelPack> packs_;
};

}  // namespace spikeforge::jit
