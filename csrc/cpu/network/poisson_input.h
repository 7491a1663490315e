// Poisson input on the CPU, in one instruction set: the numbers that the operation poisson of neuron text draws, as its
// draw 0, of neighbouring neurons; of one rate by a table in place of the probabilities one by one.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"
#include "csrc/neuron/draws.h"

#include <cstdint>
#include <vector>

namespace spikeforge::cpu {

// Input of one rate and weight.
struct PoissonInput {
  double rate = 0, weight = 0;
  const std::uint32_t* thresholds = nullptr;  // of poisson_thresholds
  int count = 0;
};

// Input with a rate and weight per neuron.
struct PoissonInputs {
  const double* rates = nullptr;
  const double* none = nullptr;  // probability_of_none of each rate
  const double* weights = nullptr;
};

// The generator state: neuron/draws.h.
struct PoissonDraws {
  std::uint64_t key = 0, step = 0;
  std::uint64_t first = 0;  // index of the first neuron
};

// x[i] += weight * number of neuron first + i, for n of them, float32 or float64.
struct PoissonKernels {
  void (*add)(const PoissonInput& input, const PoissonDraws& draws, DType type, std::int64_t n, void* x);
  void (*add_each)(const PoissonInputs& inputs, const PoissonDraws& draws, DType type, std::int64_t n, void* x);
};

SPIKEFORGE_EACH_SET(const PoissonKernels&, poisson_kernels, ());

// The kernels of the widest supported instruction set, as in loops().
const PoissonKernels& poisson_kernels();

// Rates that poisson_of inverts: the numbers of others do not rise with their bits.
constexpr bool is_inverted(double rate) { return rate < least_of_rejection; }

// The thresholds of a rate: the upper words of the least 64 random bits that give more than k, for k = 0, 1, ... A
// number is above k if its upper word is above that; if they are equal, its lower word decides.
std::vector<std::uint32_t> poisson_thresholds(double rate);

constexpr std::int64_t least_tabled = 32;  // neurons of one rate, which pay for its table within some steps

// The probability of no event, where inversion begins; 0 for rates that use another method.
double probability_of_none(double rate);

}  // namespace spikeforge::cpu
