#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace spikeforge {

struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  bool operator==(const Hash128&) const = default;
  std::string hex() const;  // 32 digits
};

// Hashes the parts, and the length of each: {"ab", "c"} and {"a", "bc"} differ.
Hash128 hash128(std::span<const std::string_view> parts);

inline Hash128 hash128(std::initializer_list<std::string_view> parts) {
  return hash128(std::span<const std::string_view>(parts.begin(), parts.size()));
}

// Returns a fast hash, only for tables in memory.
std::uint64_t hash64(const void* data, std::size_t bytes);

// The hash for std::unordered_map: the bits are already mixed.
struct HashOfHash {
  std::size_t operator()(const Hash128& hash) const { return hash.low; }
};

}  // namespace spikeforge
