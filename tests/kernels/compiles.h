// A kernel compiled for an architecture, which may spill so many bytes.
#pragma once

#include "csrc/jit/errors.h"
#include "csrc/jit/nvrtc.h"

#include <cstddef>
#include <string>

#include "tests/catch.h"

namespace spikeforge::tests {

// The bytes that a kernel may keep on the stack and yet fit: ptxas parks a uniform register or a few there around a
// loop, whatever registers are free (seen: 24 bytes stored and loaded, at 64 registers of 128).
constexpr int parked_bytes = 24;

// The element numbered `first` of a list and every so many from there.
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
