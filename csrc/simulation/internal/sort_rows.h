// Sorts the columns of every row, and weights and delays with them: threads that own columns find theirs in a row.
#pragma once

#include "ops/connect.h"

namespace spikeforge::simulation {

// Sorts each row by columns, in place, on the CPU. The sort is stable.
void sort_rows(const Connectivity& matrix);

}  // namespace spikeforge::simulation
