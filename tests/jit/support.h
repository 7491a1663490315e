// Shared by the tests of csrc/jit: temporary folders, files, and NVRTC.
#pragma once

#include "csrc/jit/errors.h"
#include "csrc/jit/nvrtc.h"
#include "csrc/jit/nvrtc_places.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace spikeforge::test {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = fs::temp_directory_path() / "spikeforge_test_XXXXXX";
    path_ = ::mkdtemp(pattern.data());  // mode 0700
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// Sets an environment variable until the end of the scope, or unsets it if the value is empty.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value.empty() ? std::nullopt : std::optional(value));
  }
  ~ScopedEnvironment() { set(before_); }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  void set(const std::optional<std::string>& value) { value ? ::setenv(name_, value->c_str(), 1) : ::unsetenv(name_); }

  const char* name_;
  std::optional<std::string> before_;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (fs::exists(folder))
    for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

// The tests do not load torch, so CMake passes the path of its libraries.
inline fs::path torch_folder() {
#ifdef SPIKEFORGE_TEST_TORCH_FOLDER
  return SPIKEFORGE_TEST_TORCH_FOLDER;
#else
  return jit::loaded_torch_folder();
#endif
}

// Null if this machine has none.
inline const jit::Nvrtc* find_nvrtc() {
  static const auto found = []() -> std::optional<jit::Nvrtc> {
    const char* override_path = std::getenv("SPIKEFORGE_NVRTC");
    try {
      return jit::Nvrtc::open(jit::nvrtc_places(override_path ? override_path : "", torch_folder()));
    } catch (const jit::NvrtcNotFound&) {
      return {};
    }
  }();
  return found ? &*found : nullptr;
}

}  // namespace spikeforge::test

#define REQUIRE_NVRTC_OR_SKIP() \
  if (!spikeforge::test::find_nvrtc()) SPIKEFORGE_SKIP("this machine has no NVRTC; pip install nvidia-cuda-nvrtc")
