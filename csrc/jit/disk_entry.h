#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::jit {

// One file of the disk cache: magic, version, lengths, a checksum over key and payload; then the key, then the payload.
std::string encode_entry(std::string_view key, std::span<const char> payload);

// The bytes at the begin of a file that identify an entry.
inline constexpr std::size_t entry_preamble = 48;
// True for an entry of any version; and the size of the entry, if it has this version.
bool is_entry(std::string_view preamble);
std::optional<std::uint64_t> entry_size(std::string_view preamble);

// The payload, if `file` is whole and was stored under `key`.
std::optional<std::vector<char>> decode_entry(std::string_view file, std::string_view key);

}  // namespace spikeforge::jit
