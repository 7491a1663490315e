#pragma once
#include "csrc/base/file_io.h"
#include "csrc/base/hash.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::jit {

// The key of a compiled kernel.
struct DiskKey {
  Hash128 hash;                        // of everything that determines the kernel, except its compiler
  std::string arch;                    // "sm_90"; "avx512"
  std::string compiler;                // "nvrtc13.0", empty in a load: the newest there is; "cxx"
  std::string_view suffix = ".cubin";  // or ".so"
};

// Compiled kernels on disk, shared by the processes of one user. It never fails: a folder that is full, read-only or
// not trusted causes a warning, and every kernel is then compiled.
//
// A loaded kernel runs with the user's rights, so an entry is valid only if no other user can have written it: the
// folder and the file belong to the user, neither can be written by others, and neither is a symbolic link.
class DiskCache {
 public:
  struct Config {
    std::filesystem::path folder;  // empty: no cache
    std::uint64_t limit_bytes = std::uint64_t{256} << 20;
    std::function<void(const std::string&)> warn;  // empty: writes to stderr

    // Reads the environment. The folder is the first of SPIKEFORGE_CACHE_DIR ("off" or "0": no cache),
    // $XDG_CACHE_HOME/spikeforge and ~/.cache/spikeforge; the limit is SPIKEFORGE_CACHE_LIMIT_MB.
    static Config from_environment();
  };

  explicit DiskCache(Config config);

  // Returns the cache of this process. The environment variables configure it at the first call.
  static DiskCache& get();

  // Loads an entry, which becomes the most recently used one. `stem` is the readable start of the file's name.
  std::optional<std::vector<char>> load(const DiskKey& key, std::string_view stem);
  void store(const DiskKey& key, std::string_view stem, std::span<const char> payload);
  void remove(const DiskKey& key, std::string_view stem);

  // Returns <stem>_<hash>_sm90_nvrtc13.0.cubin or <stem>_<hash>_avx512_cxx.so, which is also the key stored in the
  // entry.
  static std::string file_name(const DiskKey& key, std::string_view stem);

 private:
  enum class Create { no, yes };
  FileDescriptor open_folder(Create create);
  std::vector<std::string> names_for(const FileDescriptor& folder, const DiskKey& key, std::string_view stem);
  std::optional<std::vector<char>> load_file(const FileDescriptor& folder, const std::string& name);
  void evict(const FileDescriptor& folder);
  void warn(const std::string& what);

  const Config config_;
  std::atomic<bool> warned_ = false;
  std::atomic<unsigned> temporary_ = 0;
};

}  // namespace spikeforge::jit
