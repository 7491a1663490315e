// A TorchScript file as data: what torch::jit::load would compile and run of it is left alone.
#pragma once
#include "csrc/nir/limits.h"

#include <ATen/core/ivalue.h>

#include <string>

namespace spikeforge::nir {

// The module that the file holds, with its attributes by name and without methods. Every tensor lies within the bytes
// that are stored for it, and checksums are right. Throws std::exception, without the file's name.
c10::intrusive_ptr<c10::ivalue::Object> read_script_file(const std::string& file, const Limits& limits);

}  // namespace spikeforge::nir
