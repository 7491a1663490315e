// Checks of the tensors of a call. Error messages have the expected and the actual value. The tensors of a call must
// match one of them, the leader: x, or a traced neuron's first input.
#pragma once

#include "csrc/kernels/multistep/cell.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

namespace spikeforge::ops {

struct Leader {
  const char* op;    // the beginning of error messages
  const char* name;  // of its argument
  const at::Tensor& tensor;
};

// The type of states for a leader of this type.
c10::ScalarType state_type(c10::ScalarType leader);

bool is_supported(c10::ScalarType type);

// [T, *shape], and not too long.
void check_steps(const Leader& leader);
// The same, and its type must be one that kernels support.
void check_leader(const Leader& leader);
// Strided, and of the leader's type or the type of its states.
void check_type(const Leader& leader, const char* name, const at::Tensor& t);
void check_device(const Leader& leader, const char* name, const at::Tensor& t);
// [*shape]
void check_state(const Leader& leader, const char* name, const at::Tensor& state);
// Broadcasts against shape. Its type is the leader's, that of the leader's states or, if these are floating point, one
// of lower precision. A 0-dimensional parameter may be on the CPU.
void check_param(const Leader& leader, const char* name, const at::Tensor& param);
// Throws ValueError unless a number is legal in arithmetic of a type.
void check_number(const char* op, const CellParam& param, double number, DType arithmetic = DType::f64);
// The same for all values of a tensor, which it reads: the error is that of the first illegal value.
void check_values(const char* op, const CellParam& param, const at::Tensor& values, DType arithmetic);
void check_positive(const char* op, const char* name, double number);

// Lengths and starts of samples as kernels take them (samples.h).
void check_samples(const Leader& leader, const at::Tensor& lengths, const at::Tensor& start);
// Checks their shapes, which have the dimensions that kernels expect; the error shows `given`, the shape that the
// caller passed.
void check_lengths_shape(const Leader& leader, const at::Tensor& lengths, c10::SymIntArrayRef given);
void check_start_shape(const Leader& leader, const at::Tensor& start, c10::SymIntArrayRef given);

// Has exactly this shape and type. The argument's name is `prefix` and `name`: grad_ and v.
void check_gradient(const Leader& leader, const char* prefix, const char* name, const at::Tensor& grad,
                    c10::SymIntArrayRef shape, c10::ScalarType type);

// Resolves a device without an index to the current one of its kind, as torch does.
c10::Device numbered(c10::Device device);

}  // namespace spikeforge::ops
