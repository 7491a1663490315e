// Spikes as bits, for what is kept from the forward to the backward pass.
#pragma once

#include "ops/common/spike_bits.h"

namespace spikeforge::ops::layers {

// Through the dispatcher. NaN everywhere, where the numbers are not valid.
at::Tensor call_unpack(const Packed& packed, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                       c10::ScalarType type, std::int64_t bits);

// Returns x, or a dense copy if its memory has gaps.
at::Tensor dense(const at::Tensor& x);

}  // namespace spikeforge::ops::layers
