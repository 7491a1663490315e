// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include "csrc/cpu/loihi/products.h"

#include <algorithm>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

void dots(const int* x, const int* weights, std::int64_t in, std::int64_t out, int* __restrict y) {
  for (std::int64_t o = 0; o < out; ++o) {
    const int* const row = weights + o * in;
    unsigned sum = 0;
    for (std::int64_t j = 0; j < in; ++j) sum += static_cast<unsigned>(row[j]) * static_cast<unsigned>(x[j]);
    y[o] = static_cast<int>(sum);
  }
}

void columns(const int* x, const int* matrix, std::int64_t in, std::int64_t out, int* __restrict y) {
  std::fill_n(y, out, 0);
  for (std::int64_t j = 0; j < in; ++j) {
    const auto message = static_cast<unsigned>(x[j]);
    if (message == 0) continue;
    const int* const column = matrix + j * out;
    for (std::int64_t o = 0; o < out; ++o)
      y[o] = static_cast<int>(static_cast<unsigned>(y[o]) + message * static_cast<unsigned>(column[o]));
  }
}

constexpr LoihiProducts table = {dots, columns};

}  // namespace
}  // namespace CPU_CAPABILITY

const LoihiProducts& SPIKEFORGE_OF_SET(loihi_products)() { return table; }

}  // namespace spikeforge::cpu
