// Arrays of a graph as tensors, and back.
#pragma once
#include "csrc/nir/array.h"

#include <ATen/core/Tensor.h>

namespace spikeforge::nir {

// Has the array's own type, or float64 for types that torch cannot compute with. It shares the array's bytes: not to be
// written.
at::Tensor shared_tensor(const Array& array);

// A copy.
at::Tensor tensor_of(const Array& array, c10::ScalarType dtype, c10::Device device = c10::kCPU);

// The same without a copy if the array's bytes have no other owner; it may then be written.
at::Tensor taken_tensor(const Array& array, c10::ScalarType dtype, c10::Device device = c10::kCPU);

// float32 or float64; others become float32.
Array array_of(const at::Tensor& tensor);

// Has the tensor's own type; bfloat16 becomes float32. Throws Error for types that no file holds.
Array exact_array(const at::Tensor& tensor);

// Has this type if it represents every value exactly, else as array_of.
Array array_as(const at::Tensor& tensor, DType dtype);

}  // namespace spikeforge::nir
