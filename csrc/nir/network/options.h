// The choices that NIR does not define. docs/nir.md lists those of other frameworks.
#pragma once
#include "csrc/nir/shapes.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace spikeforge::nir {

// The reset of a neuron that has fired.
enum class Reset {
  file,              // v_reset; 0 if the file has none (1.0.5 and earlier)
  zero,              // 0
  subtract,          // v - v_threshold
  subtract_delayed,  // v - v_threshold, in the next step, before its spike
  // v - v_threshold. If v is still above the threshold, a second subtraction precedes the next step's comparison, and
  // affects only that comparison: snnTorch's reset_delay=False
  subtract_twice
};

// The increment of IF's membrane in a step: dt r x, or r x.
enum class IfScaling { ode, per_step };

// The condition for neurons and thresholds to fire: v > v_threshold, or v >= v_threshold.
enum class Comparison { gt, ge };

// The current that charges the membrane of CubaLI and CubaLIF: after this step's input, or before it.
enum class CubaCurrent { updated, previous };

// The value of a back edge in the first step: zeros, or its value in the resting state of the network, such as a bias.
enum class RecurrentStart { zero, apply };

// The handling of a delay that is not an integer number of steps: an error, or rounding.
enum class DelayRounding { exact, nearest };

struct Surrogate {
  std::string name = "sigmoid";
  std::vector<double> args = {};  // empty: the defaults
};

// An optional member that is not set has the value in the metadata that spikeforge has written to the file, or else the
// first choice.
struct ModuleOptions {
  double dt = 0;  // seconds; there is no default
  std::optional<Reset> reset = {};
  std::optional<IfScaling> if_scaling = {};
  std::optional<Comparison> comparison = {};
  std::optional<CubaCurrent> cuba_current = {};
  std::optional<RecurrentStart> recurrent_start = {};
  DelayRounding delays = DelayRounding::exact;
  ShapeRule shapes = ShapeRule::strict;
  std::optional<Surrogate> surrogate = {};
  // Makes constants of neurons parameters instead of buffers. Weights, biases and scales always are parameters.
  bool learn_neurons = false;
  // Calls layers outside cycles once for all steps, rather than once per step. This is faster, but the last bits of a
  // row may depend on the number of rows (nn/time_distributed.h).
  bool fold_time = false;
  c10::ScalarType dtype = c10::kFloat;  // of weights and x; neurons have float32 for half types
  c10::Device device = c10::kCPU;
  std::unordered_set<std::string> reserved_names = {};  // not used for parts: in Python, attributes of a module
};

}  // namespace spikeforge::nir
