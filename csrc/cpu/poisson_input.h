// Poisson input on the CPU, in one instruction set: the numbers that the operation poisson of neuron text draws, as its
// draw 0, of neighbouring neurons of one rate, by a table in place of the probabilities one by one.
#pragma once

#include <spikeforge/base/dtype.h>

#include <cstdint>
#include <vector>

namespace spikeforge::cpu {

struct PoissonInput {
  double rate = 0;
  // Of poisson_thresholds; none: numbers are computed one by one.
  const std::uint32_t* thresholds = nullptr;
  int count = 0;
};

// Which random bits: neuron/draws.h.
struct PoissonDraws {
  std::uint64_t key = 0, step = 0;
  std::uint64_t first = 0;  // index of the first neuron
};

struct PoissonKernels {
  // x[i] += weight * number of neuron first + i, for n of them, float32 or float64.
  void (*add)(const PoissonInput& input, const PoissonDraws& draws, double weight, DType type, std::int64_t n, void* x);
};

const PoissonKernels& poisson_kernels_default();
const PoissonKernels& poisson_kernels_avx2();
const PoissonKernels& poisson_kernels_avx512();

// Of the widest set, as loops() chooses.
const PoissonKernels& poisson_kernels();

// The upper words of the least 64 random bits that give more than k, for k = 0, 1, ...: a number is above k where its
// upper word is above that; where it is the same its lower word decides. None for a rate whose numbers do not rise with
// their bits.
std::vector<std::uint32_t> poisson_thresholds(double rate);

}  // namespace spikeforge::cpu
