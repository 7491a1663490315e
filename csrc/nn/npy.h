// NumPy's file format, version 1.0: numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <string>

namespace spikeforge::nn {

// A tensor of a type that NumPy has (bfloat16 is written as float32). Throws c10::TypeError for another,
// std::runtime_error where the file cannot be written.
SPIKEFORGE_API void write_npy(const std::string& file, const at::Tensor& tensor);

// A tensor of the file's type; versions 1 to 3, either byte order, C or Fortran order. Throws std::runtime_error,
// without the name of the file, for a file that is not of this format, not a regular file, truncated, or whose elements
// are not numbers; and for an array without elements whose other sizes exceed 2^20.
SPIKEFORGE_API at::Tensor read_npy(const std::string& file);

}  // namespace spikeforge::nn
