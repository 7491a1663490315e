// CPU kernels that are C functions: at a given address (of a numba function or a C library), or compiled from C++
// source by the host compiler.
//
//   void f(void** data, int64_t* dims, int64_t** sizes, int64_t* integers, double* numbers)
//
// data, dims and sizes have one entry for each tensor of the schema, arguments before results: the contiguous elements,
// or null for an optional tensor that was not given; the number of dimensions; and the sizes. `integers` contains the
// arguments of type int, SymInt, ScalarType and bool in their order, `numbers` those of type float and Scalar.
#pragma once

#include "csrc/custom_op/definition.h"
#include "csrc/custom_op/internal/operator.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace spikeforge::custom_op {

using CFunction = void (*)(void**, std::int64_t*, std::int64_t**, std::int64_t*, double*);

// Returns a kernel that calls the function for the dtype of the first tensor. Tensors that are not in
// `definition.dtypes` must have the same dtype, because a C function cannot distinguish dtypes. Throws ValueError for
// unsupported arguments.
Kernel kernel_at(const std::map<c10::ScalarType, CFunction>& functions, const std::shared_ptr<const Operator>& op);

// Returns a kernel that calls the function `entry` of the source, whose parameters are those of a CUDA source
// (CudaKernel in definition.h). It is compiled for the dtypes of a call at the first such call, by the compiler that
// SPIKEFORGE_HOST_COMPILER names, or else by c++. A call throws c10::Error if there is no compiler, or if the source
// does not compile, with the line.
Kernel kernel_of_source(const std::string& source, const std::string& entry, const std::shared_ptr<const Operator>& op);

}  // namespace spikeforge::custom_op
