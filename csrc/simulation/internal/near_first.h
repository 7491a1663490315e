#pragma once

#include "ops/connect.h"

namespace spikeforge::simulation {

// Of a matrix on a GPU whose connections have delays of their own: brings those of delay 1 to the front of each row, so
// that they are sent without looking for them. How many they are, int32 [rows]; undefined where all have the same.
at::Tensor near_first(Connectivity& matrix);

}  // namespace spikeforge::simulation
