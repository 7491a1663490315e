// Memory of connections that are looked up one by one.
#pragma once

#include <ATen/core/Tensor.h>

namespace spikeforge::simulation {

// A copy on the CPU in large pages, where the system has them. Connections of a column lie apart: to look up where a
// small page is takes as long as its memory, and what is asked for ahead does not come. On a GPU the tensor itself.
at::Tensor in_large_pages(const at::Tensor& t);

}  // namespace spikeforge::simulation
