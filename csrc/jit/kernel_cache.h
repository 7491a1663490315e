#pragma once
#include "csrc/base/hash.h"
#include "csrc/base/once_map.h"
#include "csrc/jit/disk_cache.h"
#include "csrc/jit/driver.h"
#include "csrc/jit/nvrtc.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace spikeforge::jit {

struct KernelSource {
  std::string name;   // for people: "lif_forward"; begins the file's name on disk
  std::string entry;  // the extern "C" kernel in `text`
  std::string text;
  std::vector<std::string> options = {};
  std::vector<EmbeddedHeader> headers = {};
};

// The binary of a kernel.
struct Image {
  std::vector<char> bytes;
  bool is_stored = false;  // true if it is in a pack or on disk: not compiled by this process
};

// Finds kernels by their key in memory, in a pack (kernel_pack.h) or on disk, in this order, or compiles them with
// NVRTC.
//
// A kernel's key is the hash of the generator version, the text of the source and of every header, the options and the
// architecture, together with NVRTC's version. The version is not part of the hash: in memory it is always the same,
// and a machine without NVRTC can still find a kernel that another machine compiled (it uses the one of the newest
// version).
class KernelCache {
 public:
  // The external dependencies, which tests replace.
  struct Parts {
    DiskCache* disk;
    std::function<const Nvrtc&()> nvrtc;
    std::function<LoadedKernel(std::span<const char> image, const std::string& entry)> load;
    std::function<std::optional<std::vector<char>>(const Hash128& key)> packed = {};  // may be empty
  };
  struct Statistics {
    int compiled = 0;
    int pack_hits = 0;
    int disk_hits = 0;
    int memory_hits = 0;
    double compile_milliseconds = 0;
  };

  explicit KernelCache(Parts parts);

  // Returns the cache of the process.
  static KernelCache& get();

  // Returns the key of a kernel's image; library_key() returns the part of it that all kernels of this library share.
  static Hash128 key(const KernelSource& source, const std::string& arch);
  static Hash128 library_key();

  // Returns a kernel; the reference is valid for the lifetime of the cache. The text is hashed, so hot calls store the
  // reference.
  const LoadedKernel& get(const KernelSource& source, const std::string& arch);

  // Returns the image of a kernel without loading it.
  std::shared_ptr<const Image> image(const KernelSource& source, const std::string& arch);

  // True if NVRTC is available; opens it.
  bool can_compile() const;

  Statistics statistics() const;

 private:
  std::shared_ptr<const Image> image(const Hash128& hash, const KernelSource& source, const std::string& arch);
  Image make_image(const Hash128& hash, const KernelSource& source, const std::string& arch);
  Image compile(const Nvrtc& nvrtc, const DiskKey& key, const KernelSource& source);
  LoadedKernel load(const Hash128& hash, const KernelSource& source, const std::string& arch);

  const Parts parts_;
  OnceMap<Hash128, Image, HashOfHash> images_;
  OnceMap<Hash128, LoadedKernel, HashOfHash> kernels_;
  std::atomic<int> compiled_ = 0;
  std::atomic<int> pack_hits_ = 0;
  std::atomic<int> disk_hits_ = 0;
  std::atomic<int> memory_hits_ = 0;
  std::atomic<std::int64_t> compile_microseconds_ = 0;
};

}  // namespace spikeforge::jit
