// The surrogate of a call, by its name.
#pragma once

#include "ops/multistep/multistep.h"

#include <string_view>

namespace spikeforge::ops {

// A checked surrogate and its arguments; an empty list means the defaults. Throws ValueError.
struct Surrogate {
  SurrogateKind kind;
  SurrogateArgs args;
};
Surrogate parse_surrogate(const char* op, std::string_view name, c10::ArrayRef<double> args);

// Returns the name for lowered operators.
std::string_view name_of(SurrogateKind kind);
c10::ArrayRef<double> arguments_of(const MultistepCall& call);

}  // namespace spikeforge::ops
