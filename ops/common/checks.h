// Checks of the tensors of a call. Error messages have the expected and the actual value. All tensors of a call must
// match one of them, the leader: x, or the first input of a traced neuron.
#pragma once

#include "csrc/kernels/multistep/cell.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

namespace spikeforge::ops {

struct Leader {
  const char* op;    // the prefix of error messages
  const char* name;  // the name of the argument
  const at::Tensor& tensor;
};

// Returns the type of states for a leader of this type.
c10::ScalarType state_type(c10::ScalarType leader);

bool is_supported(c10::ScalarType type);

// Checks that the leader is [T, *shape], and that T is not too large.
void check_steps(const Leader& leader);
// The same, and checks that kernels support its type.
void check_leader(const Leader& leader);
// Checks that a tensor is strided, and of the leader's type or the type of its states.
void check_type(const Leader& leader, const char* name, const at::Tensor& t);
void check_device(const Leader& leader, const char* name, const at::Tensor& t);
// Checks that a tensor has the leader's type.
void check_same_type(const Leader& leader, const char* name, const at::Tensor& t);
// Check that kernels support a tensor's type, that it is strided, or both.
void check_floating(const char* op, const char* name, const at::Tensor& t);
void check_dense(const char* op, const char* name, const at::Tensor& t);
void check_dense_floating(const char* op, const char* name, const at::Tensor& t);
// Checks that a state is [*shape].
void check_state(const Leader& leader, const char* name, const at::Tensor& state);
// Checks that a parameter broadcasts against shape. Its type is the leader's, that of the leader's states or, if these
// are floating point, one of lower precision. A 0-dimensional parameter may be on the CPU.
void check_param(const Leader& leader, const char* name, const at::Tensor& param);
// Throws ValueError unless a scalar is legal in arithmetic of a type.
void check_number(const char* op, const CellParam& param, double number, DType arithmetic = DType::f64);
// The same for all values of a tensor, which are read. The error is for the first illegal value.
void check_values(const char* op, const CellParam& param, const at::Tensor& values, DType arithmetic);
void check_positive(const char* op, const char* name, double number);

// Checks lengths and starts of samples in the form for kernels (samples.h).
void check_samples(const Leader& leader, const at::Tensor& lengths, const at::Tensor& start);
// Check the shapes, in the form for kernels. The error shows `given`, the shape that the caller passed.
void check_lengths_shape(const Leader& leader, const at::Tensor& lengths, c10::SymIntArrayRef given);
void check_start_shape(const Leader& leader, const at::Tensor& start, c10::SymIntArrayRef given);

// Checks that a gradient has exactly this shape and type. The name of the argument is `prefix` plus `name`, such as
// grad_v.
void check_gradient(const Leader& leader, const char* prefix, const char* name, const at::Tensor& grad,
                    c10::SymIntArrayRef shape, c10::ScalarType type);

// Resolves a device without an index to the current device of its type, as torch does.
c10::Device numbered(c10::Device device);

}  // namespace spikeforge::ops
