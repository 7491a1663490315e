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

SPIKEFORGE_API std::size_t size_of(DType dtype);       // bytes
SPIKEFORGE_API std::string_view name_of(DType dtype);  // as numpy calls it
SPIKEFORGE_API bool is_floating_point(DType dtype);

using Shape = std::vector<std::int64_t>;

SPIKEFORGE_API std::string text_of(const Shape& shape);  // [2, 34, 34]

// The number of elements. Throws std::overflow_error if it exceeds int64.
SPIKEFORGE_API std::int64_t count_of(const Shape& shape);

// Numbers of one type: contiguous, the last dimension fastest, in the machine's byte order. A copy shares the bytes,
// which are therefore written only before the first copy is made.
class SPIKEFORGE_API Array {
 public:
  Array() : Array(DType::float64, {0}) {}
  Array(DType dtype, Shape shape);  // its bytes are not set

  template <class T> static Array of(Shape shape, std::span<const T> values);
  template <class T> static Array of(Shape shape, std::initializer_list<T> values) {
    return of<T>(std::move(shape), std::span<const T>(values.begin(), values.size()));
  }
  static Array full(Shape shape, double value, DType dtype = DType::float64);
  static Array scalar(double value, DType dtype = DType::float64) { return full({}, value, dtype); }
  static Array scalar(std::int64_t value);
  static Array integers(std::span<const std::int64_t> values);  // one dimension

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t count() const { return count_; }
  std::size_t byte_count() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }

  std::span<const std::byte> bytes() const { return {bytes_.get(), byte_count()}; }
  std::span<std::byte> writable_bytes() { return {bytes_.get(), byte_count()}; }
  // Keeps the bytes alive: for a tensor that takes them over without a copy.
  const std::shared_ptr<std::byte[]>& storage() const { return bytes_; }

  // Element by element, rounded to double. For many elements see visit in array_values.h.
  double at(std::int64_t index) const;

  // Same type, shape and bytes: NaN equals itself, and 0 is not -0.
  friend SPIKEFORGE_API bool operator==(const Array& a, const Array& b);

 private:
  DType dtype_;
  Shape shape_;
  std::int64_t count_;
  std::shared_ptr<std::byte[]> bytes_;
};

// A summary of many numbers for people.
struct Range {
  double least = 0, greatest = 0;  // of those that are not NaN; 0 if there are none
  bool has_nan = false, has_infinity = false;
};
SPIKEFORGE_API Range range_of(const Array& array);

// True if there is neither NaN nor an infinity: faster than their range.
SPIKEFORGE_API bool is_finite(const Array& array);

// The exact value of an IEEE half.
SPIKEFORGE_API float float_of_half(std::uint16_t half);
// Rounded to nearest, ties to even.
SPIKEFORGE_API std::uint16_t half_of_double(double value);

}  // namespace spikeforge::nir
