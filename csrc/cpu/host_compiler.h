// A C++ compiler that is there while the program runs, as torch.compile needs one.
//
// SPIKEFORGE_HOST_COMPILER says which: its name or path, or 1 for c++. Where the variable is not set, or 0, there is
// none: a library should not start other programs unasked.
#pragma once

#include <string>

namespace spikeforge::cpu {

class HostCompiler {
 public:
  // Null: none is wanted.
  static const HostCompiler* get();

  explicit HostCompiler(std::string command);

  // A shared object of `text`, which includes what embedded_host_headers() and torch have, for the instruction set that
  // capability() names; from the cache on disk, else compiled. `name` is for people. Loaded for good: dlsym() looks
  // into the handle. Throws std::runtime_error with the first of the compiler's errors.
  void* load(const std::string& name, const std::string& text) const;

 private:
  std::string command_;
  std::string identity_;  // changes when the compiler does
};

}  // namespace spikeforge::cpu
