// A C++ compiler that is available at run time, as for torch.compile.
//
// SPIKEFORGE_HOST_COMPILER selects it: its name or path, or 1 for c++. If the variable is not set, or 0, no compiler is
// used: a library should not start other programs without request.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace spikeforge::cpu {

// A loaded shared object, which the destructor unloads.
class SharedObject {
 public:
  SharedObject() = default;
  explicit SharedObject(void* handle) : handle_(handle) {}  // a handle of dlopen
  SharedObject(SharedObject&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  SharedObject& operator=(SharedObject&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~SharedObject();

  void* find(const char* symbol) const;  // null if it is not found

 private:
  void* handle_ = nullptr;
};

class HostCompiler {
 public:
  // Returns the selected compiler; null if there is none.
  static const HostCompiler* get();

  // The same for code that a program compiles explicitly: c++ if the variable is not set. Null if it is 0.
  static const HostCompiler* asked_for();

  explicit HostCompiler(std::string command, std::chrono::milliseconds longest = std::chrono::minutes(2));

  // Returns a shared object of `text` for the instruction set that capability() names, from the disk cache or compiled.
  // The text may include the headers of embedded_host_headers() and of torch. `name` is for readers. Throws
  // std::runtime_error with the first error of the compiler and its source line, or if the compiler exceeds its time
  // limit; the compiler and its child processes are then killed.
  SharedObject load(const std::string& name, const std::string& text) const;

 private:
  std::string command_;
  std::chrono::milliseconds longest_;
  std::string identity_;  // changes if the compiler changes
};

}  // namespace spikeforge::cpu
