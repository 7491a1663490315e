// NumPy's file format, version 1.0: numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <string>

namespace spikeforge::nn {

// Writes a tensor whose type NumPy supports (bfloat16 is written as float32). Throws c10::TypeError for other types,
// and std::runtime_error if the file cannot be written.
SPIKEFORGE_API void write_npy(const std::string& file, const at::Tensor& tensor);

// Reads a tensor of the file's type: versions 1 to 3, either byte order, C or Fortran order. Throws std::runtime_error,
// without the name of the file, for a file that has another format, is not a regular file, is truncated, or has
// non-numeric elements; and for an array without elements if the product of its other sizes exceeds 2^20.
SPIKEFORGE_API at::Tensor read_npy(const std::string& file);

}  // namespace spikeforge::nn
