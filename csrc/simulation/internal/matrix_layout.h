// How the connections of a network lie in memory.
#pragma once

#include "ops/connect.h"

#include <ATen/core/Tensor.h>

namespace spikeforge::simulation {

// Sorts each row by columns, in place, on the CPU: threads that own columns find theirs in a row. The sort is stable.
void sort_rows(const Connectivity& matrix);

// For a matrix on a GPU with a delay per connection: moves those of delay 1 to the front of each row, so that they are
// sent without a search. Returns their number, int32 [rows]; undefined if all delays are equal.
at::Tensor near_first(Connectivity& matrix);

// A copy on the CPU in large pages, if the system has them. Connections of a column are scattered: the address
// translation of a small page takes as long as its memory access, and prefetches are dropped. On a GPU the tensor
// itself.
at::Tensor in_large_pages(const at::Tensor& t);

}  // namespace spikeforge::simulation
