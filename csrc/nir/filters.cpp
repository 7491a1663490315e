#include "csrc/nir/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include <zlib.h>

namespace spikeforge::nir {
namespace {

using Bytes = std::span<const std::byte>;

std::uint32_t checksum(Bytes bytes) {
  // Fletcher's checksum over big-endian 16-bit words; an odd last byte is the high byte of a word. As in H5checksum,
  // sums are folded rather than reduced modulo 65535, which differs only for 0 and 65535.
  std::uint32_t low = 0, high = 0;
  std::size_t words = bytes.size() / 2, at = 0;
  while (words) {
    std::size_t run = std::min<std::size_t>(words, 360);  // the maximum without an overflow of 32 bits
    words -= run;
    for (; run; --run, at += 2) {
      low += std::to_integer<std::uint32_t>(bytes[at]) << 8 | std::to_integer<std::uint32_t>(bytes[at + 1]);
      high += low;
    }
    low = (low & 0xffff) + (low >> 16);
    high = (high & 0xffff) + (high >> 16);
  }
  if (bytes.size() % 2) {
    low += std::to_integer<std::uint32_t>(bytes[at]) << 8;
    high += low;
    low = (low & 0xffff) + (low >> 16);
    high = (high & 0xffff) + (high >> 16);
  }
  low = (low & 0xffff) + (low >> 16);
  high = (high & 0xffff) + (high >> 16);
  return high << 16 | low;
}

// Inflates a chunk. The output may not be larger than the chunk.
std::string inflate_exactly(Bytes input, std::span<std::byte> output, std::size_t& filled) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return "zlib does not start";
  // zlib counts in 32 bits; a chunk is smaller than 4 GiB.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data()));
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(output.data());
  stream.avail_out = static_cast<uInt>(output.size());
  const int result = inflate(&stream, Z_FINISH);
  filled = output.size() - stream.avail_out;
  inflateEnd(&stream);
  if (result == Z_STREAM_END) return "";
  if (result == Z_BUF_ERROR && stream.avail_out == 0) return "a chunk inflates to more than its size";
  return "a chunk's deflate stream is damaged";
}

// LibLZF's format: a byte n < 32 is followed by n + 1 literal bytes; otherwise its upper three bits are a length (7:
// one more byte follows) and the rest, with the byte after it, the distance of a copy of length + 2 bytes.
std::optional<std::size_t> lzf_exactly(Bytes input, std::span<std::byte> output) {
  std::size_t in = 0, out = 0;
  const auto byte = [&] { return std::to_integer<std::size_t>(input[in++]); };
  while (in < input.size()) {
    const std::size_t control = byte();
    if (control < 32) {
      const std::size_t length = control + 1;
      if (length > input.size() - in || length > output.size() - out) return {};
      std::ranges::copy(input.subspan(in, length), output.begin() + static_cast<std::ptrdiff_t>(out));
      in += length;
      out += length;
      continue;
    }
    std::size_t length = control >> 5;
    if (length == 7) {
      if (in == input.size()) return {};
      length += byte();
    }
    if (in == input.size()) return {};
    const std::size_t distance = ((control & 31) << 8 | byte()) + 1;
    length += 2;
    if (distance > out || length > output.size() - out) return {};
    for (; length; --length, ++out) output[out] = output[out - distance];  // source and target may overlap
  }
  return out;
}

// Undoes the shuffle filter, which stores byte k of all elements contiguously.
void unshuffle(Bytes input, std::size_t element_size, std::span<std::byte> output) {
  const std::size_t count = input.size() / element_size;
  for (std::size_t k = 0; k < element_size; ++k)
    for (std::size_t i = 0; i < count; ++i) output[i * element_size + k] = input[k * count + i];
  std::ranges::copy(input.subspan(count * element_size),
                    output.begin() + static_cast<std::ptrdiff_t>(count * element_size));
}

}  // namespace

std::string unknown_filter(int id) {
  switch (id) {
    case deflate:
    case shuffle:
    case fletcher32:
    case szip:
    case lzf: return "";
    case 5: return "nbit";
    case 6: return "scaleoffset";
    case 307: return "bzip2";
    case 32001: return "blosc";
    case 32004: return "lz4";
    case 32008: return "bitshuffle";
    case 32015: return "zstd";
    case 32026: return "blosc2";
    default: return fmt::format("number {}", id);
  }
}

std::string unfilter(std::span<const Filter> filters, unsigned skipped, std::vector<std::byte>& input,
                     std::span<std::byte> output) {
  // Between two filters, the bytes are in `input`. A checksum adds 4 bytes to the chunk.
  constexpr std::size_t checksum_size = 4;
  std::vector<std::byte> next;
  for (std::size_t i = filters.size(); i-- > 0;) {
    if (i < 32 && skipped >> i & 1) continue;
    const std::size_t most = output.size() + checksum_size * i;
    switch (filters[i].id) {
      case deflate: {
        next.resize(most);
        std::size_t filled = 0;
        if (std::string wrong = inflate_exactly(input, next, filled); !wrong.empty()) return wrong;
        next.resize(filled);
        input.swap(next);
        break;
      }
      case lzf: {
        next.resize(most);
        const std::optional<std::size_t> filled = lzf_exactly(input, next);
        if (!filled) return "a chunk's lzf stream is damaged";
        next.resize(*filled);
        input.swap(next);
        break;
      }
      case shuffle:
        if (filters[i].element_size <= 1) break;
        next.resize(input.size());
        unshuffle(input, filters[i].element_size, next);
        input.swap(next);
        break;
      case fletcher32: {
        if (input.size() < checksum_size) return "a chunk is shorter than its checksum";
        const Bytes content = Bytes(input).first(input.size() - checksum_size);
        std::uint32_t stored = 0;
        for (std::size_t k = 0; k < checksum_size; ++k)
          stored |= std::to_integer<std::uint32_t>(input[content.size() + k]) << 8 * k;
        const std::uint32_t sum = checksum(content);
        // libhdf5 before 1.6.3 swapped the bytes of both halves, and later versions still accept this.
        const std::uint32_t swapped = (sum & 0x00ff00ff) << 8 | (sum & 0xff00ff00) >> 8;
        if (stored != sum && stored != swapped) return "a chunk's checksum is wrong";
        input.resize(content.size());
        break;
      }
      default: return fmt::format("filter {} cannot be undone", unknown_filter(filters[i].id));
    }
  }
  if (input.size() != output.size())
    return fmt::format("a chunk has {} bytes instead of {}", input.size(), output.size());
  std::ranges::copy(input, output.begin());
  return "";
}

}  // namespace spikeforge::nir
