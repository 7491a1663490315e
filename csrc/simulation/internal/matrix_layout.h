// How the connections of a network lie in memory.
#pragma once

#include "ops/connect.h"

#include <ATen/core/Tensor.h>

namespace spikeforge::simulation {

// Sorts each row by columns, in place, on the CPU: threads that own columns find theirs in a row. The sort is stable.
void sort_rows(const Connectivity& matrix);

// For a matrix on a GPU with a delay per connection: moves connections of delay 1 to the front of each row, so that
// spikes are sent through them without a search. Returns the number of these connections, int32 [rows]; undefined if
// all delays are equal.
at::Tensor near_first(Connectivity& matrix);

// Returns a copy in large pages on the CPU, if the system has them. Connections of a column are scattered: with small
// pages, address translation takes as long as the memory access, and prefetches are dropped. On a GPU, returns the
// tensor itself.
at::Tensor in_large_pages(const at::Tensor& t);

}  // namespace spikeforge::simulation
