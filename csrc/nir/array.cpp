#include "csrc/nir/array.h"
#include "csrc/nir/array_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>
#include <type_traits>

#include <sys/mman.h>

namespace spikeforge::nir {
namespace {

struct DTypeFacts {
  std::string_view name;
  std::size_t size;
};

constexpr DTypeFacts facts[] = {{"bool", 1},   {"int8", 1},    {"int16", 2},   {"int32", 4},
                                {"int64", 8},  {"uint8", 1},   {"uint16", 2},  {"uint32", 4},
                                {"uint64", 8}, {"float16", 2}, {"float32", 4}, {"float64", 8}};

const DTypeFacts& facts_of(DType dtype) { return facts[static_cast<std::size_t>(dtype)]; }

template <class T> constexpr DType dtype_of();
template <> constexpr DType dtype_of<std::int8_t>() { return DType::int8; }
template <> constexpr DType dtype_of<std::int16_t>() { return DType::int16; }
template <> constexpr DType dtype_of<std::int32_t>() { return DType::int32; }
template <> constexpr DType dtype_of<std::int64_t>() { return DType::int64; }
template <> constexpr DType dtype_of<std::uint8_t>() { return DType::uint8; }
template <> constexpr DType dtype_of<std::uint16_t>() { return DType::uint16; }
template <> constexpr DType dtype_of<std::uint32_t>() { return DType::uint32; }
template <> constexpr DType dtype_of<std::uint64_t>() { return DType::uint64; }
template <> constexpr DType dtype_of<float>() { return DType::float32; }
template <> constexpr DType dtype_of<double>() { return DType::float64; }

template <class T> T rounded(double value) {
  if constexpr (std::is_same_v<T, Half>)
    return {half_of_double(value)};
  else if constexpr (std::is_same_v<T, Boolean>)
    return {value != 0};
  else
    return static_cast<T>(value);
}

template <std::size_t alignment> std::shared_ptr<std::byte[]> allocate_aligned(std::size_t size) {
  return {static_cast<std::byte*>(::operator new[](size, std::align_val_t{alignment})),
          [](std::byte* bytes) { ::operator delete[](bytes, std::align_val_t{alignment}); }};
}

// Allocates memory with the alignment of torch's tensors, so that linear algebra libraries use the same code path and
// return the same bits. Large arrays are in huge pages if the system has them, as in numpy: filling 40 MB took 10000
// page faults, half of the time of reading a file.
std::shared_ptr<std::byte[]> allocate(std::size_t size) {
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  if (size < 2 * huge_page) return allocate_aligned<64>(size);
  auto bytes = allocate_aligned<huge_page>(size);
#ifdef MADV_HUGEPAGE
  ::madvise(bytes.get(), size / huge_page * huge_page, MADV_HUGEPAGE);
#endif
  return bytes;
}

// The minimum, the maximum and the NaNs of one lane. The compiler vectorises over lanes.
template <class T> struct Lanes {
  static constexpr std::size_t count = 16;
  std::array<T, count> least, greatest;
  std::array<bool, count> has_nan{};

  Lanes() {
    least.fill(std::numeric_limits<T>::infinity());
    greatest.fill(-std::numeric_limits<T>::infinity());
  }
  void take(std::size_t lane, T value) {
    least[lane] = value < least[lane] ? value : least[lane];
    greatest[lane] = value > greatest[lane] ? value : greatest[lane];
    has_nan[lane] |= value != value;
  }
};

template <class T> Range range_of_floats(std::span<const T> values) {
  Lanes<T> lanes;
  const std::size_t whole = values.size() / lanes.count * lanes.count;
  for (std::size_t i = 0; i < whole; i += lanes.count)
    for (std::size_t lane = 0; lane < lanes.count; ++lane) lanes.take(lane, values[i + lane]);
  for (std::size_t i = whole; i < values.size(); ++i) lanes.take(i - whole, values[i]);
  return {std::ranges::min(lanes.least), std::ranges::max(lanes.greatest), std::ranges::count(lanes.has_nan, true) > 0};
}

template <class T> Range range_of_others(std::span<const T> values) {
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const T element : values) {
    const auto value = static_cast<double>(element);
    range.has_nan |= std::isnan(value);
    range.least = std::fmin(range.least, value);
    range.greatest = std::fmax(range.greatest, value);
  }
  return range;
}

}  // namespace

std::size_t size_of(DType dtype) { return facts_of(dtype).size; }
std::string_view name_of(DType dtype) { return facts_of(dtype).name; }
bool is_floating_point(DType dtype) { return dtype >= DType::float16; }

std::string text_of(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::int64_t count_of(const Shape& shape) {
  std::int64_t count = 1;
  bool too_many = false;
  for (const std::int64_t size : shape) {
    if (size < 0) throw std::overflow_error("a dimension is negative");
    if (size == 0) return 0;
    too_many |= __builtin_mul_overflow(count, size, &count);
  }
  if (too_many) throw std::overflow_error("too many elements");
  return count;
}

Array::Array(DType dtype, Shape shape)
    : dtype_(dtype),
      shape_(std::move(shape)),
      count_(count_of(shape_)),
      bytes_(count_ ? allocate(byte_count()) : nullptr) {}

template <class T> Array Array::of(Shape shape, std::span<const T> values) {
  Array array(dtype_of<T>(), std::move(shape));
  if (static_cast<std::size_t>(array.count()) != values.size())
    throw std::invalid_argument(fmt::format("{} values for the shape {}", values.size(), text_of(array.shape())));
  std::ranges::copy(std::as_bytes(values), array.writable_bytes().begin());
  return array;
}
template SPIKEFORGE_API Array Array::of(Shape, std::span<const std::int8_t>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const std::int16_t>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const std::int32_t>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const std::int64_t>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const std::uint8_t>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const std::uint16_t>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const std::uint32_t>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const std::uint64_t>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const float>);
template SPIKEFORGE_API Array Array::of(Shape, std::span<const double>);

Array Array::full(Shape shape, double value, DType dtype) {
  Array array(dtype, std::move(shape));
  with_type(dtype, [&]<class T>(T) { std::ranges::fill(writable_values_of<T>(array), rounded<T>(value)); });
  return array;
}

Array Array::scalar(std::int64_t value) { return of<std::int64_t>({}, {value}); }

Array Array::integers(std::span<const std::int64_t> values) {
  return of<std::int64_t>({static_cast<std::int64_t>(values.size())}, values);
}

double Array::at(std::int64_t index) const {
  return with_type(dtype_, [&]<class T>(T) { return static_cast<double>(values_of<T>(*this)[index]); });
}

bool operator==(const Array& a, const Array& b) {
  return a.dtype_ == b.dtype_ && a.shape_ == b.shape_ && std::ranges::equal(a.bytes(), b.bytes());
}

bool is_finite(const Array& array) {
  return with_type(array.dtype(), [&]<class T>(T) {
    if constexpr (std::is_floating_point_v<T>) {
      // Tests whether all bits of the exponent are set, with integer operations, which the compiler vectorises.
      using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
      constexpr Bits exponent = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
      Bits odd = 0;
      for (const T value : values_of<T>(array)) odd |= (std::bit_cast<Bits>(value) & exponent) == exponent ? 1 : 0;
      return odd == 0;
    } else {
      const Range range = range_of(array);
      return !range.has_nan && !range.has_infinity;
    }
  });
}

Range range_of(const Array& array) {
  return with_type(array.dtype(), [&]<class T>(T) {
    Range range;
    if constexpr (std::is_floating_point_v<T>)
      range = range_of_floats(values_of<T>(array));
    else
      range = range_of_others(values_of<T>(array));
    if (range.least > range.greatest) range.least = range.greatest = 0;  // there are no values
    range.has_infinity = std::isinf(range.least) || std::isinf(range.greatest);
    return range;
  });
}

float float_of_half(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  float value;
  if (exponent == 31)
    value = mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else if (exponent == 0)
    value = std::ldexp(static_cast<float>(mantissa), -24);
  else
    value = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return half >> 15 ? -value : value;
}

std::uint16_t half_of_double(double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // Rounds in units of the last place, 2^-24 for subnormal numbers. A carry into the exponent is correct.
  const int place = std::max(exponent - 11, -24);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -place)));
  return static_cast<std::uint16_t>(sign + (place == -24 ? units : ((place + 24) << 10) + units));
}

}  // namespace spikeforge::nir
