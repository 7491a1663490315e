// What a kernel may keep on the stack and yet fit.
#pragma once

namespace spikeforge::tests {

// ptxas parks a uniform register or two on the stack around a loop, whatever registers are free (seen: one value stored
// and loaded once, at 56 registers). More than that is a kernel that does not fit.
constexpr int parked_bytes = 16;

}  // namespace spikeforge::tests
