// Conversion of the integer, floating-point and boolean types of HDF5.
#pragma once
#include "csrc/nir/array.h"
#include "csrc/nir/hdf5_library.h"

#include <span>

namespace spikeforge::nir {

// A number type of a file. Floating point types that are not IEEE types (bfloat16, or the 80 bits of x87) are read as
// the smallest supported type with their range and precision; x87 is rounded to float64.
struct NumberType {
  DType dtype;       // in memory
  std::size_t size;  // in the file
  bool is_big_endian;
  bool is_native;  // apart from its byte order
  struct Bits {    // for a float that is not native
    std::size_t sign, exponent, exponent_size, mantissa, mantissa_size;
    std::size_t bias;
    bool leading_bit_is_stored;
  } bits;
};

// Throws std::runtime_error with the reason if the type is not numeric.
NumberType number_type(hid_t type);

// Converts in place: reorders bytes, and normalises booleans to 0 and 1.
void to_native(const NumberType& type, std::span<std::byte> bytes);

// Converts from a type that is not native.
void convert(const NumberType& type, std::span<const std::byte> bytes, Array& array);

}  // namespace spikeforge::nir
