// The bytes of a file. Every read checks its offset.
#pragma once
#include "csrc/base/export.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace spikeforge::nir {

class SPIKEFORGE_API ByteSource {
 public:
  // Opens a regular file. Throws std::runtime_error with the reason.
  static ByteSource open(const std::string& path);
  // Reads bytes in memory, which are not copied.
  explicit ByteSource(std::span<const std::byte> bytes) : bytes_(bytes), size_(bytes.size()) {}

  ByteSource(ByteSource&& other) noexcept;
  ByteSource& operator=(ByteSource&&) = delete;
  ~ByteSource();

  std::uint64_t size() const { return size_; }
  // Returns a path that opens this file, even if it was renamed or removed. Empty for a file in memory.
  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Returns false if a byte is after the end.
  bool read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  ByteSource(int file, std::uint64_t size, std::string fallback_path);

  int file_ = -1;
  std::span<const std::byte> bytes_;
  std::uint64_t size_;
  std::string path_;
};

}  // namespace spikeforge::nir
