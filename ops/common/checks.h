// Checks of the tensors of a call, which say what was expected and what came. All tensors of a call fit one of them,
// its leader: x, or a traced neuron's first input.
#pragma once

#include "csrc/kernels/multistep/cell.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

namespace spikeforge::ops {

struct Leader {
  const char* op;    // as messages begin
  const char* name;  // of its argument
  const at::Tensor& tensor;
};

// The type in which states are kept beside such a leader.
c10::ScalarType state_type(c10::ScalarType leader);

bool is_supported(c10::ScalarType type);

// [T, *shape], and not too long.
void check_steps(const Leader& leader);
// The same, of a type that there are kernels for.
void check_leader(const Leader& leader);
// Strided, of the leader's type or that of its states.
void check_type(const Leader& leader, const char* name, const at::Tensor& t);
void check_device(const Leader& leader, const char* name, const at::Tensor& t);
// [*shape]
void check_state(const Leader& leader, const char* name, const at::Tensor& state);
// Broadcasts against shape, and has the leader's type, that of its states or, where these are floating-point numbers,
// one of lower precision; a 0-dimensional one may be on the CPU.
void check_param(const Leader& leader, const char* name, const at::Tensor& param);
// Throws ValueError unless a number is legal in arithmetic of a type.
void check_number(const char* op, const CellParam& param, double number, DType arithmetic = DType::f64);
// The same of every value of a tensor, which is read: of its first illegal one, if it has any.
void check_values(const char* op, const CellParam& param, const at::Tensor& values, DType arithmetic);
void check_positive(const char* op, const char* name, double number);

// Lengths and starts of samples as kernels take them (samples.h).
void check_samples(const Leader& leader, const at::Tensor& lengths, const at::Tensor& start);
// Their shapes, with as many dimensions as kernels take; `given` is how a caller gave them.
void check_lengths_shape(const Leader& leader, const at::Tensor& lengths, c10::SymIntArrayRef given);
void check_start_shape(const Leader& leader, const at::Tensor& start, c10::SymIntArrayRef given);

// Has exactly this shape and type. `prefix` and `name` together are the argument's: grad_ and v.
void check_gradient(const Leader& leader, const char* prefix, const char* name, const at::Tensor& grad,
                    c10::SymIntArrayRef shape, c10::ScalarType type);

// Resolves a device without an index to the current one of its kind, as torch does.
c10::Device numbered(c10::Device device);

}  // namespace spikeforge::ops
