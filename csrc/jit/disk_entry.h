#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::jit {

// One file of the disk cache: magic, version, lengths, a checksum over key and payload; then the key, then the payload.
std::string encode_entry(std::string_view key, std::span<const char> payload);

// The payload, if `file` is whole and was stored under `key`.
std::optional<std::vector<char>> decode_entry(std::string_view file, std::string_view key);

}  // namespace spikeforge::jit
