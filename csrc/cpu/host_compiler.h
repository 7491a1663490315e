// A C++ compiler that is available while the program runs, as torch.compile needs one.
//
// SPIKEFORGE_HOST_COMPILER selects it: its name or path, or 1 for c++. If the variable is not set, or 0, there is
// none: a library should not start other programs unasked.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace spikeforge::cpu {

// A shared object that is loaded, until this goes.
class SharedObject {
 public:
  SharedObject() = default;
  explicit SharedObject(void* handle) : handle_(handle) {}  // of dlopen
  SharedObject(SharedObject&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  SharedObject& operator=(SharedObject&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~SharedObject();

  void* find(const char* symbol) const;  // null if there is none

 private:
  void* handle_ = nullptr;
};

class HostCompiler {
 public:
  // Null: none is wanted.
  static const HostCompiler* get();

  // For code that a program explicitly compiles: c++ if the variable is not set. Null if it is 0.
  static const HostCompiler* asked_for();

  explicit HostCompiler(std::string command, std::chrono::milliseconds longest = std::chrono::minutes(2));

  // A shared object of `text`, which includes what embedded_host_headers() and torch have, for the instruction set that
  // capability() names; from the cache on disk, else compiled. `name` is for people. Throws std::runtime_error with the
  // first of the compiler's errors and the line that it is about, and where the compiler takes longer than it may,
  // which then is ended with all that it started.
  SharedObject load(const std::string& name, const std::string& text) const;

 private:
  std::string command_;
  std::chrono::milliseconds longest_;
  std::string identity_;  // changes when the compiler does
};

}  // namespace spikeforge::cpu
