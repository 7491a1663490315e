// The surrogates of surrogate.def as an enumeration. Host code alone includes it.
#pragma once

#include <cstdint>

namespace spikeforge {

enum class SurrogateKind : std::uint8_t {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) name,
#include <spikeforge/neuron/surrogate.def>
#undef SPIKEFORGE_SURROGATE
};

}  // namespace spikeforge
