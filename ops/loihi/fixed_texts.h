// Fixed-point neurons as neuron text on floating-point tensors that hold whole numbers: the bits of the integers, and a
// straight-through derivative of rounding and wraps.
//
// float32 is enough for the bits. A state is split at 12 bits before it decays, so that every product stays within
// 2^24; the sums have at most 24 bits while |x| <= 2^17, or exceed 2^24 only before a voltage saturates.
#pragma once

#include "csrc/kernels/multistep/loihi_cells.h"

#include <c10/util/ArrayRef.h>

#include <string>
#include <string_view>

namespace spikeforge::ops {

// A surrogate as a text names it. Throws ValueError in the name of op.
std::string surrogate_text(const char* op, std::string_view name, c10::ArrayRef<double> args);

// Inputs x; states as the cell's; parameters as the cell's but bias_exp: bias_mant is the whole bias.
std::string fixed_lif_text(const LoihiCell& cell, const std::string& surrogate, bool detach_reset);

}  // namespace spikeforge::ops
