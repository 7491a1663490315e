// The surrogate of a call, by its name.
#pragma once

#include "ops/multistep/multistep.h"

#include <string_view>

namespace spikeforge::ops {

// A surrogate's name and numbers, checked; no numbers are the defaults. Throws ValueError.
struct Surrogate {
  SurrogateKind kind;
  SurrogateArgs args;
};
Surrogate parse_surrogate(const char* op, std::string_view name, c10::ArrayRef<double> args);

// The name that lowered operators take.
std::string_view name_of(SurrogateKind kind);
c10::ArrayRef<double> arguments_of(const MultistepCall& call);

}  // namespace spikeforge::ops
