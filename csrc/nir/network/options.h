// The choices that NIR leaves to the program that runs a graph. docs/nir.md lists those of other frameworks.
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
  subtract_delayed,  // v - v_threshold, in the next step and before that one's spike
  // v - v_threshold. If v is still above the threshold, a second subtraction precedes the next step's comparison, and
  // affects only that comparison: snnTorch's reset_delay=False
  subtract_twice
};

// The increment of IF's membrane in a step: dt r x, or r x.
enum class IfScaling { ode, per_step };

// Neurons and thresholds fire if v > v_threshold, or if v >= v_threshold.
enum class Comparison { gt, ge };

// The current that charges the membrane of CubaLI and CubaLIF: after this step's input, or before it.
enum class CubaCurrent { updated, previous };

// The value of a back edge in the first step: zeros, or the value in the resting state of the network, such as a bias.
enum class RecurrentStart { zero, apply };

// A delay that is no whole number of steps is refused, or rounded.
enum class DelayRounding { exact, nearest };

struct Surrogate {
  std::string name = "sigmoid";
  std::vector<double> args = {};  // empty: its defaults
};

// Those that are optional follow what spikeforge itself has written into the file's metadata, else the first choice.
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
  // Weights, biases and scales are parameters of the module. Constants of neurons are buffers; so they are learned too.
  bool learn_neurons = false;
  // Layers are called once for all steps where they lie in no cycle, rather than once a step. Faster; but the last bits
  // of a row may depend on how many rows there are (nn/time_distributed.h).
  bool fold_time = false;
  c10::ScalarType dtype = c10::kFloat;  // of weights, and of x; neurons have float32 beside half types
  c10::Device device = c10::kCPU;
  std::unordered_set<std::string> reserved_names = {};  // that no part has: in Python, attributes of a module
};

}  // namespace spikeforge::nir
