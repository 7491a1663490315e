#include "samples.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <spikeforge/nn/npy.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "error.h"

namespace {

std::ifstream open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || file.peek() == std::ifstream::traits_type::eof())
    throw UserError(fmt::format("cannot read {}: {}", path, file.eof() ? "it is empty" : std::strerror(errno)));
  return file;
}

// "3,0.5,1" -> {3, 0.5, 1}; empty if the text contains anything but numbers and commas.
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
  if (file.bad()) throw UserError(fmt::format("{}: it cannot be read beyond line {}", path, rows));
  const auto count = static_cast<std::int64_t>(rows);
  Samples samples{
      .values =
          at::from_blob(numbers.data(), {count, static_cast<std::int64_t>(numbers.size()) / count}, at::kFloat).clone(),
      .classes = {}};
  if (classes_last) samples.classes = at::from_blob(classes.data(), {count}, at::kLong).clone();
  return samples;
}

Samples read_npy(const std::string& path) {
  try {
    return {.values = spikeforge::nn::read_npy(path), .classes = {}};
  } catch (const std::runtime_error& error) {
    throw UserError(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace

Samples read_samples(const std::string& path, bool classes_last) {
  if (!path.ends_with(".npy")) return read_csv(path, classes_last);
  if (classes_last) throw UserError("--classes-last is for tables of text, and " + path + " is an array");
  return read_npy(path);
}
