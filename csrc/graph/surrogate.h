// A surrogate with its numbers, as a spike carries it.
#pragma once

#include "csrc/base/export.h"
#include "csrc/neuron/surrogate_kind.h"

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace spikeforge::graph {

struct Surrogate {
  std::optional<SurrogateKind> kind;  // none: the derivative is 0
  std::array<double, 4> args{};       // in the order of surrogate.def

  bool operator==(const Surrogate&) const = default;
};

struct SurrogateArgument {
  const char* name;
  double default_value;
  double lowest;
  bool lowest_is_legal;
  bool is_whole;
};

struct SurrogateDescription {
  std::string_view name;
  std::span<const SurrogateArgument> args;
};

// The rows of surrogate.def, in the order of SurrogateKind.
std::span<const SurrogateDescription> surrogate_descriptions();
const SurrogateDescription& describe(SurrogateKind kind);

// No numbers are the defaults; the name "none" is the surrogate without a derivative. Throws GraphError for an unknown
// name, a wrong count, or a number that is not legal.
Surrogate make_surrogate(std::string_view name, std::span<const double> numbers);
SPIKEFORGE_API Surrogate make_surrogate(SurrogateKind kind, std::initializer_list<double> numbers);

// The spelling in neuron text: atan(2).
std::string text_of(const Surrogate& surrogate);

// surrogate::atan(2), surrogate::s2nn(4, 1), ...; without numbers, the defaults.
namespace surrogate {

inline Surrogate none() { return {}; }

#define SPIKEFORGE_SURROGATE(name, Struct, ...)                                    \
  template <class... Numbers> Surrogate name(Numbers... numbers) {                 \
    return make_surrogate(SurrogateKind::name, {static_cast<double>(numbers)...}); \
  }
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE

}  // namespace surrogate
}  // namespace spikeforge::graph
