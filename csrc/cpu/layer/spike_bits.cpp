// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include "csrc/cpu/layer/spike_bits.h"
#include "csrc/cpu/element_type.h"

#include <cstring>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

constexpr std::int64_t block = 64;  // numbers that are converted to bytes at once

// Converts numbers from 0 to `most` to bytes, and others to 0. Returns false if there are others.
template <class Stored> bool to_bytes(const Stored* x, std::int64_t count, int most, std::uint8_t* bytes) {
  using Number = Compute<Stored>;
  const auto largest = static_cast<Number>(most);
  unsigned wrong = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<Number>(x[i]);
    const bool is_inside = number >= 0 && number <= largest;  // false for NaN
    const int whole = static_cast<int>(is_inside ? number : Number(0));
    const bool is_legal = is_inside && static_cast<Number>(whole) == number;
    wrong |= static_cast<unsigned>(!is_legal);
    bytes[i] = static_cast<std::uint8_t>(is_legal ? whole : 0);
  }
  return wrong == 0;
}

std::uint64_t word_of(const std::uint8_t* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Packs bytes into bits. `bytes` has space for a block; elements after `count` are zero.
void pack_bytes(const std::uint8_t* bytes, std::int64_t count, int bits, std::uint8_t* packed) {
  if (bits == 1) {
    // Byte k of a word times 2^(56 - 7k) is at bit 56 + k; other products are below bit 56, or overflow.
    for (std::int64_t i = 0; i < count; i += 8)
      packed[i / 8] = static_cast<std::uint8_t>(word_of(bytes + i) * 0x0102040810204080u >> 56);
  } else {
    for (std::int64_t i = 0; i < count; i += 2) packed[i / 2] = static_cast<std::uint8_t>(bytes[i] | bytes[i + 1] << 4);
  }
}

template <class Stored> bool pack(const Stored* x, std::int64_t count, int bits, std::uint8_t* packed) {
  bool all_legal = true;
  for (std::int64_t i = 0; i < count; i += block) {
    alignas(block) std::uint8_t bytes[block] = {};
    const std::int64_t n = count - i < block ? count - i : block;
    all_legal &= to_bytes(x + i, n, (1 << bits) - 1, bytes);
    pack_bytes(bytes, n, bits, packed + i * bits / 8);
  }
  return all_legal;
}

template <class Stored> void unpack(const std::uint8_t* packed, std::int64_t count, int bits, Stored* x) {
  Stored numbers[16];
  for (int k = 0; k < 1 << bits; ++k) numbers[k] = static_cast<Stored>(static_cast<float>(k));
  const int mask = (1 << bits) - 1;
  const std::int64_t a_byte = 8 / bits, whole = count / a_byte * a_byte;
  for (std::int64_t i = 0; i < whole; i += a_byte) {
    const int byte = packed[i / a_byte];
    for (int k = 0; k < a_byte; ++k) x[i + k] = numbers[byte >> k * bits & mask];
  }
  for (std::int64_t i = whole; i < count; ++i) x[i] = numbers[packed[whole / a_byte] >> (i - whole) * bits & mask];
}

bool pack_any(const void* x, DType type, std::int64_t count, int bits, std::uint8_t* packed) {
  return with_element(type,
                      [&](auto number) { return pack(static_cast<const decltype(number)*>(x), count, bits, packed); });
}

void unpack_any(const std::uint8_t* packed, std::int64_t count, int bits, DType type, void* x) {
  with_element(type, [&](auto number) { unpack(packed, count, bits, static_cast<decltype(number)*>(x)); });
}

constexpr SpikeBits table = {pack_any, unpack_any};

}  // namespace
}  // namespace CPU_CAPABILITY

const SpikeBits& SPIKEFORGE_OF_SET(spike_bits)() { return table; }

}  // namespace spikeforge::cpu
