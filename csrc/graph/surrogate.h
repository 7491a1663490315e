// A surrogate with its arguments, as stored in a spike.
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
  std::optional<SurrogateKind> kind;  // std::nullopt: the derivative is 0
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

// Returns the rows of surrogate.def, in the order of SurrogateKind.
std::span<const SurrogateDescription> surrogate_descriptions();
const SurrogateDescription& describe(SurrogateKind kind);

// Creates a surrogate by its name; if there are no numbers, it has the default arguments. The derivative of "none" is
// 0. Throws GraphError for an unknown name, a wrong number of arguments, or an illegal argument.
Surrogate make_surrogate(std::string_view name, std::span<const double> numbers);
SPIKEFORGE_API Surrogate make_surrogate(SurrogateKind kind, std::initializer_list<double> numbers);

// Returns the surrogate as written in neuron text, for example atan(2).
std::string text_of(const Surrogate& surrogate);

// surrogate::atan(2), surrogate::s2nn(4, 1), ...; without arguments, the defaults apply.
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
