// Spikes as bits, for what is kept from the forward to the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace spikeforge::ops::layers {

// A dense tensor of small whole numbers, `bits` (1 or 4) a number, in the order of its memory.
struct Packed {
  at::Tensor numbers;  // uint8
  at::Tensor valid;    // 0-dimensional, bool: whether all were such numbers
};

// Throws ValueError for another width than 1 and 4; `op` begins the message.
void check_bits(const char* op, std::int64_t bits);

// Through the dispatcher.
Packed call_pack(const at::Tensor& x, std::int64_t bits);
// NaN everywhere, where the numbers are not valid.
at::Tensor call_unpack(const Packed& packed, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                       c10::ScalarType type, std::int64_t bits);

// x, or a copy of it where there are holes in its memory.
at::Tensor dense(const at::Tensor& x);

}  // namespace spikeforge::ops::layers
