// Spikes as bits, for tensors that are saved for the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace spikeforge::ops {

// A dense tensor of small integers, packed with `bits` (1 or 4) bits per element, in the order of its memory.
struct Packed {
  at::Tensor numbers;  // uint8
  at::Tensor valid;    // 0-dimensional, bool: true if all elements fit
};

// Throws ValueError for widths other than 1 and 4; `op` begins the message.
void check_bits(const char* op, std::int64_t bits);

c10::SymInt bytes_of(const c10::SymInt& count, std::int64_t bits);

// Allocates the tensors for the elements of x.
Packed empty_packed(const at::Tensor& x, std::int64_t bits);

// Calls the operator through the dispatcher. Unpacked values are NaN everywhere if the numbers are not valid.
Packed call_pack(const at::Tensor& x, std::int64_t bits);
at::Tensor call_unpack(const Packed& packed, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                       c10::ScalarType type, std::int64_t bits);

// Returns x, or a dense copy if its memory has gaps.
at::Tensor without_gaps(const at::Tensor& x);

}  // namespace spikeforge::ops
