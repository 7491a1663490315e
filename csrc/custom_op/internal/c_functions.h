// CPU kernels that are C functions: at a given address (of a Python program's numba, a library of C), or compiled from
// C++ source by the host compiler.
//
//   void f(void** data, int64_t* dims, int64_t** sizes, int64_t* integers, double* numbers)
//
// data, dims and sizes have one entry for each tensor of the schema, arguments before results: its elements, which are
// contiguous, null for an optional one that was not given; its number of dimensions; and its sizes. integers holds
// the arguments of type int, SymInt, ScalarType and bool in their order, numbers those of type float and Scalar.
#pragma once

#include "csrc/custom_op/definition.h"
#include "csrc/custom_op/internal/operator.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace spikeforge::custom_op {

using CFunction = void (*)(void**, std::int64_t*, std::int64_t**, std::int64_t*, double*);

// The function for each dtype of the first tensor. A tensor whose dtype is not among `definition.dtypes` must have that
// one too, since a C function cannot distinguish dtypes. Throws ValueError for arguments that it cannot take.
Kernel kernel_at(const std::map<c10::ScalarType, CFunction>& functions, const std::shared_ptr<const Operator>& op);

// `entry` is a function in the source, whose parameters are those of a CUDA source (CudaKernel in definition.h). It is
// compiled for the dtypes of a call at the first such call. If SPIKEFORGE_HOST_COMPILER names no compiler, c++ is used.
// A call throws c10::Error if there is none, or if the source does not compile, with the line.
Kernel kernel_of_source(const std::string& source, const std::string& entry, const std::shared_ptr<const Operator>& op);

}  // namespace spikeforge::custom_op
