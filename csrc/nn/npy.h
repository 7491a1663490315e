// NumPy's file format, version 1.0: numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <spikeforge/export.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace spikeforge::nn {

// A tensor of a type that NumPy has (bfloat16 is written as float32). Throws c10::TypeError for another,
// std::runtime_error where the file cannot be written.
SPIKEFORGE_API void write_npy(const std::string& file, const at::Tensor& tensor);

}  // namespace spikeforge::nn
