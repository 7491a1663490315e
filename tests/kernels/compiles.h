// Compiles a kernel for an architecture, and checks that it spills at most this number of bytes.
#pragma once

#include "csrc/jit/errors.h"
#include "csrc/jit/nvrtc.h"

#include <cstddef>
#include <string>

#include "tests/catch.h"

namespace spikeforge::tests {

// The number of bytes that a kernel may spill: ptxas spills a few uniform registers around a loop even if registers are
// free (observed: 24 bytes stored and loaded, with 64 of 128 registers in use).
constexpr int parked_bytes = 24;

// Returns the elements of a list from number `first` on, with this stride.
struct Share {
  std::size_t first = 0, every = 1;
};

inline void check_compiles(const std::string& arch, const jit::KernelSource& source, int most_spilled) {
  INFO(arch << "\n" << source.text);
  try {
    const jit::CompileResult result = jit::Nvrtc::get().compile(
        {.name = source.name, .text = source.text, .options = {}, .arch = arch, .headers = {}, .anew = true});
    REQUIRE(result.usage.has_value());
    CHECK(result.usage->spill_bytes <= most_spilled);
  } catch (const jit::RuntimeError& error) {
    FAIL(error.what());
  }
}

}  // namespace spikeforge::tests
