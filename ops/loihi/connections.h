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

// Throws unless t is a dense tensor of this type beside x.
void check_integers(const char* op, const char* name, const at::Tensor& t, c10::ScalarType type, const at::Tensor& x);
// Throws ValueError unless least <= value <= most.
void check_number(const char* op, const char* name, std::int64_t value, std::int64_t least, std::int64_t most);
// The same of a tensor's values, where they can be read at once: on the CPU, and not while a graph is traced.
void check_elements(const char* op, const char* name, const at::Tensor& t, std::int64_t least, std::int64_t most);
// If they can be read: throws ValueError unless the values of a floating-point tensor are whole numbers.
void check_whole(const char* op, const char* name, const at::Tensor& t);

// Throws ValueError for numbers that shifted_sums does not take.
void check_shift(const char* op, std::int64_t weight_exp, std::int64_t bits);

// `value` with the gradient of `source`, which has its shape and is finite.
at::Tensor straight_through(const at::Tensor& value, const at::Tensor& source);

// Sums, int32, shifted to the left by weight_exp or arithmetically to the right, and wrapped around at this many bits,
// with a sign.
at::Tensor shifted_sums(const at::Tensor& sums, std::int64_t weight_exp, std::int64_t bits);

}  // namespace spikeforge::ops
