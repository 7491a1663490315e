#pragma once
#include <cstddef>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// Divides the caller's memory into pieces aligned to cache lines; without memory, it only counts them.
class Scratch {
 public:
  explicit Scratch(void* memory) : base_(static_cast<char*>(memory)) {}

  template <class T> T* take(std::size_t n) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (n * sizeof(T) + 63) / 64 * 64;  // NOLINT(bugprone-sizeof-expression): pieces may hold pointers
    return piece;
  }

  bool counts_only() const { return base_ == nullptr; }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
