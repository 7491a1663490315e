// Arrays of a graph as tensors, and back.
#pragma once
#include "csrc/nir/array.h"

#include <ATen/core/Tensor.h>

namespace spikeforge::nir {

// Of the array's own type, or float64 for what torch cannot compute with. It shares the array's bytes: not to be
// written.
at::Tensor shared_tensor(const Array& array);

// A copy.
at::Tensor tensor_of(const Array& array, c10::ScalarType dtype, c10::Device device = c10::kCPU);

// The same without a copy where nobody else holds the array's bytes, which it may write then.
at::Tensor taken_tensor(const Array& array, c10::ScalarType dtype, c10::Device device = c10::kCPU);

// float32 or float64; others become float32.
Array array_of(const at::Tensor& tensor);

// Of the tensor's own type; bfloat16 becomes float32. Throws Error for types that no file holds.
Array exact_array(const at::Tensor& tensor);

// Of this type if it holds every value exactly, else as array_of.
Array array_as(const at::Tensor& tensor, DType dtype);

}  // namespace spikeforge::nir
