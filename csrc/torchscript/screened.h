// Deprecated: removed after version 0.2. A TorchScript file is a program; SECURITY.md describes how to run an untrusted
// one.
#pragma once

#include "csrc/base/export.h"

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace spikeforge {

// Calls torch::jit::load(file, device). The file is not screened, and `operators` has no effect.
[[deprecated("use torch::jit::load: a TorchScript file is a program, and is not screened")]]  //
SPIKEFORGE_API torch::jit::Module
load_screened(const std::string& file, c10::Device device = c10::kCPU, const std::vector<std::string>& operators = {});

}  // namespace spikeforge
