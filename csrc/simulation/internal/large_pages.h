// Memory of connections that are looked up one by one.
#pragma once

#include <ATen/core/Tensor.h>

namespace spikeforge::simulation {

// A copy on the CPU in large pages, if the system has them. Connections of a column are scattered: the address
// translation of a small page takes as long as its memory access, and prefetches are dropped. On a GPU the tensor
// itself.
at::Tensor in_large_pages(const at::Tensor& t);

}  // namespace spikeforge::simulation
