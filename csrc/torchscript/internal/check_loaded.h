#pragma once

#include <ATen/core/ivalue.h>

namespace spikeforge::torchscript {

// Throws ScreeningError unless every attribute, of this object and of what it holds, is what its class declares, and
// every tensor lies within its storage. torch sets attributes to whatever the file has, and reads those of one class's
// object as another's, beyond its end.
void check_loaded(const c10::IValue& module);

}  // namespace spikeforge::torchscript
