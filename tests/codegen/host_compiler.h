// Compiles the source that a test has printed with the host's compiler, and loads it.
#pragma once

#include "csrc/jit/sources.h"

#include <dlfcn.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace spikeforge::test {

#if defined(__clang__)
inline constexpr const char* own_constants = "";
#else
// With GCC, all libraries of a process share inline constants of the same name.
inline constexpr const char* own_constants = " -fno-gnu-unique ";
#endif

// Definitions of the CUDA keywords and built-ins in a kernel's source, for the host's compiler.
inline constexpr const char* device_words = R"(
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
struct Index { unsigned x; };
)";

class HostCompiled {
 public:
  // C++17 without contraction, and without optimisation: an optimising compiler evaluates functions of constants at
  // compile time, with more accurate rounding.
  HostCompiled(const std::string& source, const std::string& options) {
    std::string pattern = (std::filesystem::temp_directory_path() / "spikeforge-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp");
    folder_ = pattern;
    const std::string file = (folder_ / "printed.cpp").string(), object = (folder_ / "printed.so").string();
    std::ofstream(file) << source;
    for (const jit::EmbeddedHeader& header : jit::embedded_headers()) {
      const std::filesystem::path path = folder_ / header.name;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path) << header.text;
    }
    const std::string command = std::string(SPIKEFORGE_TEST_CXX) +
                                " -std=c++17 -O0 -ffp-contract=off -fno-builtin -shared -fPIC " + own_constants +
                                options + " -I " + folder_.string() + " -o " + object + " " + file;
    if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
    library_ = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw std::runtime_error(dlerror());
  }
  HostCompiled(const HostCompiled&) = delete;
  HostCompiled& operator=(const HostCompiled&) = delete;
  ~HostCompiled() {
    if (library_) dlclose(library_);
    std::filesystem::remove_all(folder_);
  }

  template <class Function> Function* function(const std::string& name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name.c_str()));
  }

 private:
  std::filesystem::path folder_;
  void* library_ = nullptr;
};

}  // namespace spikeforge::test
