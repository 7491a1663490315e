// Compiled kernels in one file, for machines that have no NVRTC, or no time for it.
//
// They are found by the same key as those of the disk cache, and before them. A pack belongs to the build of the
// library that wrote it: the key holds the text of every device header.
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

// Names the file, and what is wrong.
struct PackError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct PackedKernel {
  Hash128 key;       // KernelCache::key(source, arch)
  std::string name;  // for people: "lif_forward sm_90"
  std::vector<char> image;
};

// Under a temporary name that is then renamed: a failed write leaves what was there. Throws PackError.
void write_pack(const std::string& path, std::span<const PackedKernel> kernels);

// An open pack: its index is in memory, images are read on demand.
class KernelPack {
 public:
  // Throws PackError for a file that cannot be read, that is damaged, or that another build of the library wrote.
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
  // With those that SPIKEFORGE_KERNEL_PACK names (paths between colons), and libspikeforge.pack beside the library. One
  // that cannot be read costs a warning.
  static KernelPacks& get();

  // How many kernels it has.
  std::size_t add(const std::string& path);

  // The pack that was added last is looked into first.
  std::optional<std::vector<char>> find(const Hash128& key) const;

 private:
  mutable std::mutex mutex_;
  std::vector<KernelPack> packs_;
};

}  // namespace spikeforge::jit
