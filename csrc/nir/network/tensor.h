// Converts arrays of a graph to tensors, and back.
#pragma once
#include "csrc/nir/array.h"

#include <ATen/core/Tensor.h>

namespace spikeforge::nir {

// Returns a tensor of the array's type, or float64 for types that torch cannot compute with. It shares the array's
// bytes and must not be written.
at::Tensor shared_tensor(const Array& array);

// Returns a copy.
at::Tensor tensor_of(const Array& array, c10::ScalarType dtype, c10::Device device = c10::kCPU);

// Like tensor_of, but without a copy if the array's bytes have no other owner. The result may be written.
at::Tensor taken_tensor(const Array& array, c10::ScalarType dtype, c10::Device device = c10::kCPU);

// Returns an array of float32 or float64; other types become float32.
Array array_of(const at::Tensor& tensor);

// Returns an array of the tensor's type; bfloat16 becomes float32. Throws Error for types that files do not support.
Array exact_array(const at::Tensor& tensor);

// Returns an array of this type if it represents every value exactly, else array_of(tensor).
Array array_as(const at::Tensor& tensor, DType dtype);

}  // namespace spikeforge::nir
