// Sorts the columns of every row, and weights and delays with them: threads that own columns find theirs in a row.
#pragma once

#include "ops/connect.h"

namespace spikeforge::simulation {

// In place, on the CPU. Connections of the same two neurons stay in their order.
void sort_rows(const Connectivity& matrix);

}  // namespace spikeforge::simulation
