#pragma once
#include <chrono>

namespace spikeforge::jit {

// How long one compilation may take: SPIKEFORGE_COMPILE_SECONDS, or two minutes.
std::chrono::milliseconds longest_compilation();

}  // namespace spikeforge::jit
