#include "csrc/nn/npy.h"
#include "csrc/base/file_io.h"
#include "ops/common/plain.h"

#include <c10/util/Exception.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge::nn {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what); }

static_assert(std::endian::native == std::endian::little, "files are written as '<'");

constexpr std::pair<at::ScalarType, std::string_view> types[] = {
    {at::kBool, "|b1"},   {at::kByte, "|u1"},   {at::kChar, "|i1"},   {at::kShort, "<i2"},
    {at::kInt, "<i4"},    {at::kLong, "<i8"},   {at::kHalf, "<f2"},   {at::kFloat, "<f4"},
    {at::kDouble, "<f8"}, {at::kUInt16, "<u2"}, {at::kUInt32, "<u4"}, {at::kUInt64, "<u8"}};

// Returns the value of a key in the header, which is the text of a Python dictionary.
std::string_view value_of(std::string_view header, std::string_view key) {
  const std::size_t at = header.find("'" + std::string(key) + "'");
  const std::size_t colon = at == std::string_view::npos ? at : header.find(':', at);
  if (colon == std::string_view::npos) refuse("its header has no " + std::string(key));
  std::string_view value = header.substr(colon + 1);
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value;
}

std::vector<std::int64_t> shape_of(std::string_view value) {
  const std::size_t end = value.find(')');
  if (!value.starts_with('(') || end == std::string_view::npos) refuse("its header's shape is not a tuple");
  std::vector<std::int64_t> shape;
  std::int64_t elements = 1;
  for (value = value.substr(1, end - 1); !value.empty();) {
    const std::size_t comma = std::min(value.find(','), value.size());
    std::string_view number = value.substr(0, comma);
    value.remove_prefix(std::min(comma + 1, value.size()));
    const std::size_t first = number.find_first_not_of(' ');
    if (first == std::string_view::npos) continue;
    number.remove_prefix(first);
    std::int64_t size = 0;
    const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), size);
    const bool is_whole = std::all_of(rest, number.data() + number.size(), [](char c) { return c == ' '; });
    constexpr std::int64_t most = std::int64_t{1} << 48;
    if (error != std::errc() || !is_whole || size < 0 ||
        __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements) || elements > most ||
        shape.size() > 32)
      refuse("its header's shape is not legal");
    shape.push_back(size);
  }
  // Limits arrays without elements: a loop over their samples or steps must not be long.
  constexpr std::int64_t most_of_nothing = std::int64_t{1} << 20;
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (is_empty && elements > most_of_nothing)
    refuse("it has no elements, and the product of its other sizes is above 2^20");
  return shape;
}

at::ScalarType type_of(std::string_view text) {
  for (const auto& [type, own] : types)
    if (text == own.substr(1)) return type;
  refuse("its numbers are of the type '" + std::string(text.substr(0, 20)) + "', but must be b1, i, u or f");
}

void swap_bytes(char* bytes, std::int64_t count, std::size_t size) {
  for (std::int64_t i = 0; i < count; ++i, bytes += size) std::reverse(bytes, bytes + size);
}

}  // namespace

at::Tensor read_npy(const std::string& path) {
  const PlainFile file = open_plain_file(path);
  if (!file.descriptor) refuse("cannot be opened: " + file.error);
  const int in = file.descriptor.get();
  std::array<char, 12> start{};
  std::size_t before = 10;  // bytes of magic, version, and the header's length
  if (!read_into(in, start.data(), before) || std::string_view(start.data(), 6) != "\x93NUMPY")
    refuse("is no .npy file");
  const int version = start[6];
  if (version < 1 || version > 3) refuse("is of a version that is not known");
  const auto byte = [&](int i) { return static_cast<std::size_t>(static_cast<unsigned char>(start[i])); };
  std::size_t length = byte(8) | byte(9) << 8;
  if (version > 1) {
    if (!read_into(in, start.data() + before, 2)) refuse("is cut short");
    before += 2;
    length |= byte(10) << 16 | byte(11) << 24;
  }
  constexpr std::size_t longest = 1 << 16;  // a header has only a type and a shape
  if (length > longest) refuse("its header is damaged");
  std::string header(length, ' ');
  if (!read_into(in, header.data(), length)) refuse("is cut short");

  const std::string_view description = value_of(header, "descr");
  const std::size_t quote = description.find('\'', 1);
  if (!description.starts_with('\'') || quote == std::string_view::npos || quote < 3)
    refuse("it holds other than numbers");
  const char order = description[1];
  const at::ScalarType type = type_of(description.substr(2, quote - 2));
  const bool is_fortran = value_of(header, "fortran_order").starts_with("True");
  std::vector<std::int64_t> shape = shape_of(value_of(header, "shape"));
  if (is_fortran) std::reverse(shape.begin(), shape.end());

  // The size of the data, which is checked against the file before memory is allocated.
  std::uint64_t bytes = c10::elementSize(type);
  for (const std::int64_t size : shape) bytes *= static_cast<std::uint64_t>(size);
  if (bytes > file.size - before - length) refuse("is cut short");
  at::Tensor values = at::empty(shape, type);
  auto* data = static_cast<char*>(values.mutable_data_ptr());
  if (!read_into(in, data, bytes)) refuse("cannot be read");
  if (order == '>') swap_bytes(data, values.numel(), c10::elementSize(type));
  if (type == at::kBool) std::transform(data, data + bytes, data, [](char byte) { return byte != 0 ? 1 : 0; });
  if (!is_fortran) return values;
  std::vector<std::int64_t> reversed(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) reversed[d] = static_cast<std::int64_t>(shape.size() - 1 - d);
  return values.permute(reversed).contiguous();
}

void write_npy(const std::string& file, const at::Tensor& tensor) {
  at::Tensor values = tensor.detach().cpu();
  if (values.scalar_type() == at::kBFloat16) values = values.to(at::kFloat);
  values = ops::plain(values);
  const auto type = std::ranges::find(types, values.scalar_type(), [](const auto& known) { return known.first; });
  TORCH_CHECK_TYPE(type != std::end(types), "write_npy: NumPy has no type for ", values.scalar_type());

  std::string shape;
  for (const std::int64_t size : values.sizes()) shape += std::to_string(size) + ", ";
  std::string header =
      "{'descr': '" + std::string(type->second) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr std::size_t before = 10, alignment = 64;  // magic, version and length come before the header
  header.resize((before + header.size() + 1 + alignment - 1) / alignment * alignment - before, ' ');
  header.back() = '\n';

  std::ofstream out(file, std::ios::binary);
  const std::string_view magic("\x93NUMPY\1\0", 8);
  const char length[] = {static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  out.write(magic.data(), static_cast<std::streamsize>(magic.size())).write(length, sizeof length);
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  out.write(static_cast<const char*>(values.const_data_ptr()), static_cast<std::streamsize>(values.nbytes()));
  out.flush();
  if (!out) throw std::runtime_error("cannot write " + file + ": " + std::strerror(errno));
}

}  // namespace spikeforge::nn
