#pragma once

#include "ops/connect.h"

namespace spikeforge::simulation {

// For a matrix on a GPU with a delay per connection: moves those of delay 1 to the front of each row, so that they are
// sent without a search. Returns their number, int32 [rows]; undefined if all delays are equal.
at::Tensor near_first(Connectivity& matrix);

}  // namespace spikeforge::simulation
