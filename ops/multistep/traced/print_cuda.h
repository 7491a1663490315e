#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

namespace spikeforge::ops {

// The CUDA source of the kernels of a typical call with inputs of this type.
std::string print_cuda(std::string_view neuron, c10::ScalarType dtype);

}  // namespace spikeforge::ops
