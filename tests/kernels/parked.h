// The bytes that a kernel may keep on the stack and yet fit.
#pragma once

namespace spikeforge::tests {

// ptxas parks a uniform register or a few on the stack around a loop, whatever registers are free (seen: 24 bytes
// stored and loaded, at 64 registers of 128). More than that is a kernel that does not fit.
constexpr int parked_bytes = 24;

}  // namespace spikeforge::tests
