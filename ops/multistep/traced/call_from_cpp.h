// A call of run by a C++ function, which goes around the dispatcher where nobody looks at calls on the way.
#pragma once

#include "ops/multistep/multistep.h"

namespace spikeforge::ops {

MultistepResults call_run_from_cpp(const MultistepCall& call);

}  // namespace spikeforge::ops
