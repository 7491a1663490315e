#include "samples.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "error.h"

namespace {

std::ifstream open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || file.peek() == std::ifstream::traits_type::eof())
    throw UserError(fmt::format("cannot read {}: {}", path, file ? "it is empty" : std::strerror(errno)));
  return file;
}

// "3,0.5,1" -> {3, 0.5, 1}; empty where something else than numbers and commas stands.
std::vector<float> parse_row(const std::string& line) {
  std::vector<float> row;
  const char *at = line.data(), *const end = at + line.size();
  while (true) {
    while (at != end && *at == ' ') ++at;
    float number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return {};
    row.push_back(number);
    if (next == end) return row;
    if (*next != ',') return {};
    at = next + 1;
  }
}

Samples read_csv(const std::string& path, bool classes_last) {
  std::ifstream file = open(path);
  std::vector<float> numbers;
  std::vector<std::int64_t> classes;
  std::size_t columns = 0, rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    const std::vector<float> row = parse_row(line);
    if (rows++ == 0) columns = row.size();
    if (row.size() != columns || columns < (classes_last ? 2 : 1))
      throw UserError(fmt::format("{}:{}: expected {}numbers with commas between{}", path, rows,
                                  rows == 1 ? "" : fmt::format("{} ", columns),
                                  classes_last ? ", the class last" : ""));
    numbers.insert(numbers.end(), row.begin(), row.end() - (classes_last ? 1 : 0));
    if (!classes_last) continue;
    const float last = row.back();
    if (!(last >= 0 && last < 1e9f && last == static_cast<float>(static_cast<std::int64_t>(last))))
      throw UserError(fmt::format("{}:{}: a class is a whole number from 0 on", path, rows));
    classes.push_back(static_cast<std::int64_t>(last));
  }
  const auto count = static_cast<std::int64_t>(rows);
  Samples samples{
      .values =
          at::from_blob(numbers.data(), {count, static_cast<std::int64_t>(numbers.size()) / count}, at::kFloat).clone(),
      .classes = {}};
  if (classes_last) samples.classes = at::from_blob(classes.data(), {count}, at::kLong).clone();
  return samples;
}

// What stands after 'key': in the header, which is a dictionary of Python.
std::string_view value_of(std::string_view header, std::string_view key) {
  const std::size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size() + 3);
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

std::optional<at::ScalarType> type_of(std::string_view text) {
  for (const auto& [name, type] :
       {std::pair("'<f4'", at::kFloat), std::pair("'<f8'", at::kDouble), std::pair("'<f2'", at::kHalf),
        std::pair("'|u1'", at::kByte), std::pair("'|i1'", at::kChar), std::pair("'<i2'", at::kShort),
        std::pair("'<i4'", at::kInt), std::pair("'<i8'", at::kLong), std::pair("'|b1'", at::kBool)})
    if (text.starts_with(name)) return type;
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> shape_of(std::string_view text) {
  if (!text.starts_with('(')) return std::nullopt;
  std::vector<std::int64_t> shape;
  const char *at = text.data() + 1, *const end = text.data() + text.size();
  while (true) {
    while (at != end && (*at == ' ' || *at == ',')) ++at;
    if (at != end && *at == ')') return shape;
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 0) return std::nullopt;
    shape.push_back(size);
    at = next;
  }
}

// numpy.org/doc/stable/reference/generated/numpy.lib.format.html
Samples read_npy(const std::string& path) {
  std::ifstream file = open(path);
  const auto refuse = [&](const std::string& what) { throw UserError(fmt::format("{}: {}", path, what)); };
  unsigned char start[8], length[4] = {};
  file.read(reinterpret_cast<char*>(start), sizeof start);
  if (!file || std::memcmp(start, "\x93NUMPY", 6) != 0) refuse("it is no file of NumPy");
  if (start[6] < 1 || start[6] > 3) refuse("it is of an unknown version of the format");
  file.read(reinterpret_cast<char*>(length), start[6] == 1 ? 2 : 4);
  std::string header(length[0] | length[1] << 8 | length[2] << 16, ' ');
  if (!file || length[3] != 0) refuse("its header is damaged");
  file.read(header.data(), static_cast<std::streamsize>(header.size()));

  const auto shape = shape_of(value_of(header, "shape"));
  const std::string_view order = value_of(header, "fortran_order"), type_text = value_of(header, "descr");
  if (!file || !shape || (!order.starts_with("False") && !order.starts_with("True")) || type_text.empty())
    refuse("its header is damaged");
  const auto type = type_of(type_text);
  if (!type) refuse(fmt::format("its numbers are {}, which are not read", type_text.substr(0, type_text.find(','))));

  // As many bytes as it says, before memory is asked for.
  const std::streampos data = file.tellg();
  file.seekg(0, std::ios::end);
  const auto bytes = static_cast<std::uint64_t>(file.tellg() - data);
  file.seekg(data);
  std::uint64_t expected = at::elementSize(*type);
  for (const std::int64_t size : *shape)
    if (__builtin_mul_overflow(expected, static_cast<std::uint64_t>(size), &expected)) refuse("its shape is damaged");
  if (bytes != expected) refuse(fmt::format("it holds {} bytes of numbers, but its shape says {}", bytes, expected));

  const bool reversed = order.starts_with("True");
  const std::vector<std::int64_t> sizes = reversed ? std::vector(shape->rbegin(), shape->rend()) : *shape;
  at::Tensor values = at::empty(sizes, *type);
  file.read(static_cast<char*>(values.mutable_data_ptr()), static_cast<std::streamsize>(bytes));
  if (!file) refuse("it cannot be read");
  if (reversed)
    values = values.permute(at::DimVector([&] {
      at::DimVector dims;
      for (auto d = static_cast<std::int64_t>(sizes.size()); d-- > 0;) dims.push_back(d);
      return dims;
    }()));
  return {.values = values.contiguous(), .classes = {}};
}

}  // namespace

Samples read_samples(const std::string& path, bool classes_last) {
  if (!path.ends_with(".npy")) return read_csv(path, classes_last);
  if (classes_last) throw UserError("--classes-last is for tables of text, and " + path + " is an array");
  return read_npy(path);
}
