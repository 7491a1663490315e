// A call of run by a C++ function, which bypasses the dispatcher if nothing intercepts calls.
#pragma once

#include "ops/multistep/multistep.h"

namespace spikeforge::ops {

MultistepResults call_run_from_cpp(const MultistepCall& call);

}  // namespace spikeforge::ops
