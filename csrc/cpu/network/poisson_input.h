// Poisson input of neighbouring neurons on the CPU, in one instruction set: the same numbers as draw 0 of the operation
// poisson of neuron text. For a common rate, a table replaces the computation of the probabilities.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"
#include "csrc/neuron/draws.h"

#include <cstdint>
#include <vector>

namespace spikeforge::cpu {

// Input with one rate and weight for all neurons.
struct PoissonInput {
  double rate = 0, weight = 0;
  const std::uint32_t* thresholds = nullptr;  // from poisson_thresholds()
  int count = 0;
};

// Input with a rate and weight per neuron.
struct PoissonInputs {
  const double* rates = nullptr;
  const double* none = nullptr;  // probability_of_none of each rate
  const double* weights = nullptr;
};

// The generator state (neuron/draws.h).
struct PoissonDraws {
  std::uint64_t key = 0, step = 0;
  std::uint64_t first = 0;  // index of the first neuron
};

// x[i] += weight * number of neuron first + i, for n neurons, in float32 or float64.
struct PoissonKernels {
  void (*add)(const PoissonInput& input, const PoissonDraws& draws, DType type, std::int64_t n, void* x);
  void (*add_each)(const PoissonInputs& inputs, const PoissonDraws& draws, DType type, std::int64_t n, void* x);
};

SPIKEFORGE_EACH_SET(const PoissonKernels&, poisson_kernels, ());

// Returns the kernels of the widest supported instruction set, as in loops().
const PoissonKernels& poisson_kernels();

// True for rates for which poisson_of uses inversion. For other rates, numbers do not increase with their bits.
constexpr bool is_inverted(double rate) { return rate < least_of_rejection; }

// Returns the thresholds of a rate: the upper words of the smallest 64 random bits whose number is above k, for k = 0,
// 1, ... A number is above k if its upper word is above the threshold; if they are equal, the lower word decides.
std::vector<std::uint32_t> poisson_thresholds(double rate);

constexpr std::int64_t least_tabled = 32;  // neurons of one rate for which a table pays off within some steps

// Returns the probability of no event, with which inversion begins; 0 for rates that use the other method.
double probability_of_none(double rate);

}  // namespace spikeforge::cpu
