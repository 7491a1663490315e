// Sums of Loihi's messages on the CPU, in one instruction set.
#pragma once

#include "csrc/cpu/instruction_set.h"

#include <cstdint>

namespace spikeforge::cpu {

// Computes the sums y [out] of the messages x [in], modulo 2^32: with weights [out, in], one dot product each; with
// their columns [in, out], the sum of the columns whose message is not 0.
struct LoihiProducts {
  void (*dots)(const int* x, const int* weights, std::int64_t in, std::int64_t out, int* y);
  void (*columns)(const int* x, const int* columns, std::int64_t in, std::int64_t out, int* y);
};

SPIKEFORGE_EACH_SET(const LoihiProducts&, loihi_products, ());

// Returns the kernels of the widest supported instruction set, as in loops().
const LoihiProducts& loihi_products();

}  // namespace spikeforge::cpu
