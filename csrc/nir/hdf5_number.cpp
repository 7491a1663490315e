#include "csrc/nir/hdf5_number.h"
#include "csrc/nir/array_values.h"
#include "csrc/nir/refuse.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace spikeforge::nir {
namespace {

bool is_big_endian(hid_t type) {
  switch (h5().H5Tget_order(type)) {
    case H5T_ORDER_LE: return false;
    case H5T_ORDER_BE: return true;
    default: fail("its numbers are in an unknown order of bytes");
  }
}

NumberType integer_type(hid_t type) {
  const std::size_t size = h5().H5Tget_size(type);
  if (h5().H5Tget_precision(type) != 8 * size || h5().H5Tget_offset(type) != 0)
    fail("its integers do not fill their bytes");
  const H5T_sign_t sign = h5().H5Tget_sign(type);
  if (sign != H5T_SGN_NONE && sign != H5T_SGN_2) fail("its integers have an unknown sign");
  const bool is_signed = sign == H5T_SGN_2;
  const auto result = [&](DType with_sign, DType without) {
    return NumberType{is_signed ? with_sign : without, size, is_big_endian(type), true, {}};
  };
  switch (size) {
    case 1: return {is_signed ? DType::int8 : DType::uint8, 1, false, true, {}};
    case 2: return result(DType::int16, DType::uint16);
    case 4: return result(DType::int32, DType::uint32);
    case 8: return result(DType::int64, DType::uint64);
    default: fail("its integers have {} bytes", size);
  }
}

NumberType float_type(hid_t type) {
  NumberType number{};
  NumberType::Bits& b = number.bits;
  number.size = h5().H5Tget_size(type);
  number.is_big_endian = is_big_endian(type);
  if (h5().H5Tget_fields(type, &b.sign, &b.exponent, &b.exponent_size, &b.mantissa, &b.mantissa_size) < 0)
    fail("libhdf5 cannot read its type");
  b.bias = h5().H5Tget_ebias(type);
  const H5T_norm_t norm = h5().H5Tget_norm(type);
  b.leading_bit_is_stored = norm != H5T_NORM_IMPLIED;  // x87 is written as "not normalised"

  const auto is = [&](std::size_t size, std::size_t exponent_size, std::size_t mantissa_size) {
    return number.size == size && b.sign == 8 * size - 1 && b.mantissa == 0 && b.mantissa_size == mantissa_size &&
           b.exponent == mantissa_size && b.exponent_size == exponent_size &&
           b.bias == (std::size_t{1} << (exponent_size - 1)) - 1 && norm == H5T_NORM_IMPLIED;
  };
  number.is_native = true;
  if (is(2, 5, 10)) return number.dtype = DType::float16, number;
  if (is(4, 8, 23)) return number.dtype = DType::float32, number;
  if (is(8, 11, 52)) return number.dtype = DType::float64, number;

  number.is_native = false;
  const std::size_t bits = 8 * number.size;
  const auto fits = [&](std::size_t from, std::size_t size) { return from < bits && size <= bits - from; };
  const bool is_known = number.size >= 1 && number.size <= 16 && fits(b.sign, 1) && fits(b.exponent, b.exponent_size) &&
                        fits(b.mantissa, b.mantissa_size) && b.exponent_size >= 2 && b.exponent_size <= 15 &&
                        b.mantissa_size >= 1 && b.mantissa_size <= 64 && b.bias < (std::size_t{1} << b.exponent_size);
  if (!is_known) fail("its floating point numbers of {} bytes have an unknown format", number.size);
  const bool is_narrow = b.exponent_size <= 8 && b.mantissa_size <= 23 && b.bias <= 127;
  number.dtype = is_narrow ? DType::float32 : DType::float64;
  return number;
}

// Recognises numpy's bool, which h5py writes as an enumeration of int8.
NumberType boolean_type(hid_t type) {
  const TypeId base(h5().H5Tget_super(type));
  const bool is_byte = base && h5().H5Tget_class(base.get()) == H5T_INTEGER && h5().H5Tget_size(base.get()) == 1;
  const auto member_is = [&](unsigned index, std::string_view name) {
    std::int8_t value = -1;
    if (h5().H5Tget_member_value(type, index, &value) < 0 || value != static_cast<std::int8_t>(index)) return false;
    char* const text = h5().H5Tget_member_name(type, index);
    const bool is_it = text && name == text;
    if (text) h5().H5free_memory(text);
    return is_it;
  };
  if (!is_byte || h5().H5Tget_size(type) != 1 || h5().H5Tget_nmembers(type) != 2 || !member_is(0, "FALSE") ||
      !member_is(1, "TRUE"))
    fail("it is of an enumeration type other than FALSE and TRUE");
  return {DType::boolean, 1, false, true, {}};
}

void reverse_each(std::span<std::byte> bytes, std::size_t size) {
  for (std::size_t at = 0; at + size <= bytes.size(); at += size) std::ranges::reverse(bytes.subspan(at, size));
}

double value_of(std::span<const std::byte> bytes, const NumberType::Bits& b) {
  unsigned __int128 all = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    all |= static_cast<unsigned __int128>(std::to_integer<unsigned>(bytes[i])) << 8 * i;
  const auto field = [&](std::size_t from, std::size_t size) {
    const auto part = static_cast<std::uint64_t>(all >> from);
    return size == 64 ? part : part & ((std::uint64_t{1} << size) - 1);
  };
  const bool is_negative = field(b.sign, 1);
  const std::uint64_t exponent = field(b.exponent, b.exponent_size);
  const std::uint64_t mantissa = field(b.mantissa, b.mantissa_size);
  const std::uint64_t special = (std::uint64_t{1} << b.exponent_size) - 1;
  const int scale = static_cast<int>(b.mantissa_size) - (b.leading_bit_is_stored ? 1 : 0);  // bits after the point
  double value = 0;
  if (exponent == special) {
    const std::uint64_t fraction = b.leading_bit_is_stored ? mantissa << 1 << (64 - b.mantissa_size) : mantissa;
    value = fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else {
    const int power = static_cast<int>(exponent == 0 ? 1 : exponent) - static_cast<int>(b.bias) - scale;
    value = std::ldexp(static_cast<double>(mantissa), power);
    if (exponent != 0 && !b.leading_bit_is_stored) value += std::ldexp(1.0, power + scale);
  }
  return is_negative ? -value : value;
}

}  // namespace

NumberType number_type(hid_t type) {
  switch (h5().H5Tget_class(type)) {
    case H5T_INTEGER: return integer_type(type);
    case H5T_FLOAT: return float_type(type);
    default: return boolean_type(type);
  }
}

void to_native(const NumberType& type, std::span<std::byte> bytes) {
  if (type.is_big_endian) reverse_each(bytes, type.size);
  if (type.dtype == DType::boolean)
    for (std::byte& byte : bytes) byte = byte == std::byte{0} ? std::byte{0} : std::byte{1};
}

void convert(const NumberType& type, std::span<const std::byte> bytes, Array& array) {
  std::byte element[16] = {};
  for (std::int64_t i = 0; i < array.count(); ++i) {
    const auto from = bytes.subspan(static_cast<std::size_t>(i) * type.size, type.size);
    std::ranges::copy(from, element);
    if (type.is_big_endian) std::reverse(element, element + type.size);
    const double value = value_of(std::span(element, type.size), type.bits);
    if (array.dtype() == DType::float32)
      writable_values_of<float>(array)[static_cast<std::size_t>(i)] = static_cast<float>(value);
    else
      writable_values_of<double>(array)[static_cast<std::size_t>(i)] = value;
  }
}

}  // namespace spikeforge::nir
