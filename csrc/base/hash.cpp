#include "csrc/base/hash.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace spikeforge {

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

std::uint64_t hash64(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

Hash128 hash128(std::span<const std::string_view> parts) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (const std::string_view part : parts) {
    const std::uint64_t length = part.size();
    XXH3_128bits_update(&state, &length, sizeof length);
    XXH3_128bits_update(&state, part.data(), part.size());
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(&state);
  return {digest.high64, digest.low64};
}

}  // namespace spikeforge
