#pragma once
#include "csrc/base/export.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::nir {

enum class DType : std::uint8_t {
  boolean,  // one byte, 0 or 1
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  float32,
  float64
};

SPIKEFORGE_API std::size_t size_of(DType dtype);       // bytes per element
SPIKEFORGE_API std::string_view name_of(DType dtype);  // numpy's name
SPIKEFORGE_API bool is_floating_point(DType dtype);

using Shape = std::vector<std::int64_t>;

SPIKEFORGE_API std::string text_of(const Shape& shape);  // such as "[2, 34, 34]"

// Returns the number of elements. Throws std::overflow_error if it exceeds int64.
SPIKEFORGE_API std::int64_t count_of(const Shape& shape);

// An array of numbers of one type: contiguous, in row-major order and in the machine's byte order. A copy shares the
// bytes, so they must be written before the first copy is made.
class SPIKEFORGE_API Array {
 public:
  Array() : Array(DType::float64, {0}) {}
  Array(DType dtype, Shape shape);  // uninitialized

  template <class T> static Array of(Shape shape, std::span<const T> values);
  template <class T> static Array of(Shape shape, std::initializer_list<T> values) {
    return of<T>(std::move(shape), std::span<const T>(values.begin(), values.size()));
  }
  static Array full(Shape shape, double value, DType dtype = DType::float64);
  static Array scalar(double value, DType dtype = DType::float64) { return full({}, value, dtype); }
  static Array scalar(std::int64_t value);
  static Array integers(std::span<const std::int64_t> values);  // a one-dimensional array

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t count() const { return count_; }
  std::size_t byte_count() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }

  std::span<const std::byte> bytes() const { return {bytes_.get(), byte_count()}; }
  std::span<std::byte> writable_bytes() { return {bytes_.get(), byte_count()}; }
  // Returns the owner of the bytes, for a tensor that shares them.
  const std::shared_ptr<std::byte[]>& storage() const { return bytes_; }

  // Returns one element, rounded to double. For many elements, use visit in array_values.h.
  double at(std::int64_t index) const;

  // True for equal type, shape and bytes: NaN equals itself, and 0 differs from -0.
  friend SPIKEFORGE_API bool operator==(const Array& a, const Array& b);

 private:
  DType dtype_;
  Shape shape_;
  std::int64_t count_;
  std::shared_ptr<std::byte[]> bytes_;
};

// A readable summary of an array.
struct Range {
  double least = 0, greatest = 0;  // of values that are not NaN; 0 if there are none
  bool has_nan = false, has_infinity = false;
};
SPIKEFORGE_API Range range_of(const Array& array);

// True if the array has neither NaN nor infinity. Faster than computing the range.
SPIKEFORGE_API bool is_finite(const Array& array);

// Returns the exact value of an IEEE half.
SPIKEFORGE_API float float_of_half(std::uint16_t half);
// Rounds to the nearest half, ties to even.
SPIKEFORGE_API std::uint16_t half_of_double(double value);

}  // namespace spikeforge::nir
