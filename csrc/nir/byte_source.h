// The bytes of a file, read with a check of every place.
#pragma once
#include "csrc/base/export.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace spikeforge::nir {

class SPIKEFORGE_API ByteSource {
 public:
  // A regular file; throws std::runtime_error with the reason.
  static ByteSource open(const std::string& path);
  // Bytes in memory, which are not copied.
  explicit ByteSource(std::span<const std::byte> bytes) : bytes_(bytes), size_(bytes.size()) {}

  ByteSource(ByteSource&& other) noexcept;
  ByteSource& operator=(ByteSource&&) = delete;
  ~ByteSource();

  std::uint64_t size() const { return size_; }
  // A path that opens this file, even if its name was changed or removed. Empty for a file in memory.
  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Returns false if a byte is beyond the end.
  bool read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  ByteSource(int file, std::uint64_t size, std::string fallback_path);

  int file_ = -1;
  std::span<const std::byte> bytes_;
  std::uint64_t size_;
  std::string path_;
};

}  // namespace spikeforge::nir
