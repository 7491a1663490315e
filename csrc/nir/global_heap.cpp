#include "csrc/nir/global_heap.h"

#include <array>
#include <cstring>
#include <span>
#include <stdexcept>

namespace spikeforge::nir {
namespace {

[[noreturn]] void damaged() { throw std::runtime_error("the heap that holds the string is damaged"); }

}  // namespace

std::uint64_t little_endian(const std::byte* bytes, std::size_t size) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < size; ++i) number |= std::to_integer<std::uint64_t>(bytes[i]) << 8 * i;
  return number;
}

const GlobalHeap::Collection& GlobalHeap::collection(std::uint64_t address) {
  const auto [place, is_new] = collections_.try_emplace(address);
  if (!is_new) return place->second;
  Collection& objects = place->second;

  // The header: "GCOL", version 1, three reserved bytes, and the size of the collection.
  std::array<std::byte, 16> header;
  const std::size_t header_size = 8 + length_size_;
  std::uint64_t begin = 0;
  if (__builtin_add_overflow(base_, address, &begin)) damaged();
  if (!source_.read(begin, std::span(header).first(header_size))) damaged();
  if (std::memcmp(header.data(), "GCOL", 4) != 0 || header[4] != std::byte{1}) damaged();
  const std::uint64_t size = little_endian(&header[8], length_size_);
  if (size < header_size || size > source_.size() - begin) damaged();

  // Limits the work, which overlapping collections could make quadratic in the size of the file.
  walked_ += size;
  if (walked_ / 4 > source_.size()) damaged();
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  if (!source_.read(begin, bytes)) damaged();

  // Each object has an index and a reference count (2 bytes each), 4 reserved bytes, its size, and its data, padded to
  // 8 bytes. Index 0 is the free space at the end.
  std::uint64_t at = (header_size + 7) / 8 * 8;
  const std::uint64_t object_header = (8 + length_size_ + 7) / 8 * 8;
  while (at <= size && object_header <= size - at) {
    const auto index = static_cast<std::uint32_t>(little_endian(&bytes[at], 2));
    const std::uint64_t length = little_endian(&bytes[at + 8], length_size_);
    if (index == 0) break;
    at += object_header;
    if (length > size - at) damaged();
    objects.try_emplace(index, Object{begin + at, length});
    at += length + (8 - length % 8) % 8;
  }
  return objects;
}

std::string GlobalHeap::read(std::uint64_t address, std::uint32_t index, std::uint32_t length) {
  if (length == 0) return {};
  const Collection& objects = collection(address);
  const auto object = objects.find(index);
  if (object == objects.end() || object->second.size < length) damaged();
  std::string text(length, '\0');
  if (!source_.read(object->second.offset, std::as_writable_bytes(std::span(text)))) damaged();
  return text;
}

}  // namespace spikeforge::nir
