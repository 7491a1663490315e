// Shared by the connections: checks, exact products, the shift, and the buffer of values in flight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace spikeforge::ops {

using OptionalTensor = std::optional<at::Tensor>;

// The widths of the hardware's fields.
constexpr std::int64_t most_delay = 63;
constexpr std::int64_t least_weight = -256, most_weight = 255;
constexpr std::int64_t least_weight_exp = -8, most_weight_exp = 7;

// Throws unless t is a dense tensor of this type on x's device.
void check_integers(const char* op, const char* name, const at::Tensor& t, c10::ScalarType type, const at::Tensor& x);
// Throws ValueError unless least <= value <= most.
void check_number(const char* op, const char* name, std::int64_t value, std::int64_t least, std::int64_t most);
// The same for a tensor's values, if they can be read without waiting: on the CPU, and not while a graph is traced.
void check_elements(const char* op, const char* name, const at::Tensor& t, std::int64_t least, std::int64_t most);
// Throws ValueError unless the values of a floating-point tensor are integers, if they can be read.
void check_whole(const char* op, const char* name, const at::Tensor& t);

// Throws ValueError for arguments that shifted_sums does not support.
void check_shift(const char* op, std::int64_t weight_exp, std::int64_t bits);

// Returns `value` with the gradient of `source`, which must have its shape and be finite.
at::Tensor straight_through(const at::Tensor& value, const at::Tensor& source);

// Returns int32 sums, shifted left by weight_exp (arithmetically right if negative) and wrapped around at `bits` signed
// bits.
at::Tensor shifted_sums(const at::Tensor& sums, std::int64_t weight_exp, std::int64_t bits);

}  // namespace spikeforge::ops
