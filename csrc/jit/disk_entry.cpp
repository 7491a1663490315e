#include "csrc/jit/disk_entry.h"
#include "csrc/base/hash.h"

#include <cstring>

namespace spikeforge::jit {
namespace {

constexpr char magic[8] = {'S', 'P', 'I', 'K', 'E', 'K', 'R', 'N'};
constexpr std::uint64_t version = 1;

struct Preamble {
  char magic[8];
  std::uint64_t version;
  std::uint64_t key_length;
  std::uint64_t payload_length;
  Hash128 checksum;
};
static_assert(sizeof(Preamble) == entry_preamble, "written to disk as it lies in memory, so it must have no padding");

std::optional<Preamble> preamble_of(std::string_view file) {
  Preamble preamble;
  if (file.size() < sizeof preamble || !is_entry(file)) return {};
  std::memcpy(&preamble, file.data(), sizeof preamble);
  if (preamble.version != version) return {};
  return preamble;
}

}  // namespace

std::string encode_entry(std::string_view key, std::span<const char> payload) {
  const std::string_view content(payload.data(), payload.size());
  Preamble preamble{{}, version, key.size(), content.size(), hash128({key, content})};
  std::memcpy(preamble.magic, magic, sizeof magic);

  std::string file(reinterpret_cast<const char*>(&preamble), sizeof preamble);
  file += key;
  file += content;
  return file;
}

bool is_entry(std::string_view preamble) { return preamble.starts_with({magic, sizeof magic}); }

std::optional<std::uint64_t> entry_size(std::string_view beginning) {
  const std::optional<Preamble> preamble = preamble_of(beginning);
  std::uint64_t size = sizeof(Preamble);
  if (!preamble || __builtin_add_overflow(size, preamble->key_length, &size) ||
      __builtin_add_overflow(size, preamble->payload_length, &size))
    return {};
  return size;
}

std::optional<std::vector<char>> decode_entry(std::string_view file, std::string_view key) {
  const std::optional<Preamble> found = preamble_of(file);
  if (!found) return {};
  const Preamble& preamble = *found;
  file.remove_prefix(sizeof preamble);
  // The lengths come from the file: compared one by one, their sum cannot overflow.
  if (preamble.key_length != key.size() || !file.starts_with(key)) return {};
  const std::string_view payload = file.substr(key.size());
  if (preamble.payload_length != payload.size()) return {};
  if (preamble.checksum != hash128({key, payload})) return {};
  return std::vector<char>(payload.begin(), payload.end());
}

}  // namespace spikeforge::jit
