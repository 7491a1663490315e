// What a TorchScript file was compiled to, before any of it is run. The source says what is called; the types of what
// it is called with, and its overloads, are known here.
#pragma once

#include "csrc/torchscript/internal/check_loaded.h"
#include "csrc/torchscript/internal/screen_source.h"

#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace spikeforge::torchscript {

// Throws ScreeningError unless
//   - all operators are allowed, by whatever way the source came to them,
//   - spikeforge's read a matrix before they trust its numbers,
//   - tensors alone are sorted,
//   - no value is cast to what it cannot be,
//   - calls and types are not nested deeper than a thread's stack bears.
// classes: the names of all that the source has.
void check_compiled(const torch::jit::Module& module, const std::vector<std::string>& classes,
                    const AllowedOperators& allowed, SharedCounts& counts);

}  // namespace spikeforge::torchscript
