// The surrogates of surrogate.def as an enumeration. Only host code includes it.
#pragma once

#include <cstdint>

namespace spikeforge {

enum class SurrogateKind : std::uint8_t {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) name,
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
};

// Returns the name of the struct in surrogate.h.
constexpr const char* struct_of(SurrogateKind kind) {
  switch (kind) {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) \
  case SurrogateKind::name:                     \
    return #Struct;
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
  }
  return "NoSurrogate";
}

}  // namespace spikeforge
