#include "data.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "error.h"

namespace {

constexpr int kPixels = 64;
constexpr int kBrightest = 16;
constexpr int64_t kFewest = 10;  // digits in a file, so that both parts of the split have some

// "3,0,12" -> {3, 0, 12}; empty if the text contains anything but numbers and commas.
std::vector<int> parse_numbers(std::string_view line) {
  std::vector<int> numbers;
  const char* position = line.data();
  const char* const end = position + line.size();
  while (true) {
    int number = 0;
    const auto [next, error] = std::from_chars(position, end, number);
    if (error != std::errc()) return {};
    numbers.push_back(number);
    if (next == end) return numbers;
    if (*next != ',') return {};
    position = next + 1;
  }
}

bool is_digit_row(const std::vector<int>& row) {
  if (row.size() != kPixels + 1) return false;
  for (int i = 0; i < kPixels; ++i) {
    if (row[i] < 0 || row[i] > kBrightest) return false;
  }
  return row[kPixels] >= 0 && row[kPixels] <= 9;
}

}  // namespace

Digits read_digits(const std::string& path) {
  if (std::filesystem::is_directory(path)) throw UserError(fmt::format("cannot read {}: it is a folder", path));
  std::ifstream file(path);
  if (!file) {
    throw UserError(fmt::format("cannot read {}: {} (scripts/prepare_digits.py makes it)", path, std::strerror(errno)));
  }
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<int> row = parse_numbers(line);
    if (!is_digit_row(row)) {
      throw UserError(fmt::format("{}:{}: expected 64 pixels (0 to {}) and a label (0 to 9), with commas between", path,
                                  labels.size() + 1, kBrightest));
    }
    for (int i = 0; i < kPixels; ++i) pixels.push_back(static_cast<float>(row[i]) / kBrightest);
    labels.push_back(row[kPixels]);
  }
  const auto count = static_cast<int64_t>(labels.size());
  if (count < kFewest) {
    throw UserError(fmt::format("{}:{}: the file ends here, expected at least {} digits", path, count + 1, kFewest));
  }
  return {at::tensor(pixels).view({count, 1, 8, 8}), at::tensor(labels)};
}

Split split(const Digits& digits) {
  const at::Tensor order =
      at::randperm(digits.count(), at::make_generator<at::CPUGeneratorImpl>(/*seed=*/0), at::kLong);
  const int64_t tests = digits.count() / 5;
  return {.train = digits.select(order.slice(0, tests)), .test = digits.select(order.slice(0, 0, tests))};
}

Digits Digits::select(const at::Tensor& indices) const {
  return {images.index_select(0, indices), labels.index_select(0, indices)};
}

Digits Digits::to(at::Device device) const { return {images.to(device), labels.to(device)}; }
