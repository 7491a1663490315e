// The neurons of neurons.def as an enumeration. Host code alone includes it.
#pragma once

#include <cstdint>

namespace spikeforge {

enum class NeuronKind : std::uint8_t {
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) name,
#include "csrc/neuron/neurons.def"
};

constexpr NeuronKind all_neurons[] = {
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) NeuronKind::name,
#include "csrc/neuron/neurons.def"
};

#define SPIKEFORGE_ONE(name) +1

constexpr int state_count(NeuronKind kind) {
  constexpr int counts[] = {
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) 0 SPIKEFORGE_EACH(SPIKEFORGE_ONE, states),
#include "csrc/neuron/neurons.def"
  };
  return counts[static_cast<int>(kind)];
}

// The number of required tensors, such as plif's w.
constexpr int tensor_count(NeuronKind kind) {
  constexpr int counts[] = {
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) 0 SPIKEFORGE_EACH(SPIKEFORGE_ONE, tensors),
#include "csrc/neuron/neurons.def"
  };
  return counts[static_cast<int>(kind)];
}

#undef SPIKEFORGE_ONE

// True if the neuron has the option decay_input, which divides X by tau.
constexpr bool has_decay_input(NeuronKind kind) {
  constexpr bool has[] = {
#define SPIKEFORGE_DECAY_INPUT() || true
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) false params,
#include "csrc/neuron/neurons.def"
  };
  return has[static_cast<int>(kind)];
}

}  // namespace spikeforge
