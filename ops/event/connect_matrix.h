// The parts of a matrix drawn by rule, whole (connect.cpp) or in part (connect_part.cpp).
#pragma once

#include "ops/event/connect_drawing.h"

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace spikeforge::ops::sparse {

// Every check of a call. Returns the device, numbered.
c10::Device check_connect(std::int64_t rows, std::int64_t cols, c10::ArrayRef<Projection> projections,
                          c10::ScalarType type, c10::Device device);

// The numbers of the connections of all projections: one for all, or space for one per connection.
struct MatrixNumbers {
  MatrixNumbers(c10::ArrayRef<Projection> projections, c10::ScalarType weight_type, at::TensorOptions options);

  at::Tensor one_weight, one_delay;  // [1]; undefined where each connection has its own
  at::TensorOptions weights, delays;

  at::Tensor room_for_weights(std::int64_t connections) const;
  at::Tensor room_for_delays(std::int64_t connections) const;
};

// The connections of a projection, whose rows begin at `starts`: columns, and numbers if each has its own.
void fill_connections(const Drawing& drawing, const MatrixNumbers& numbers, const at::Tensor& starts,
                      const at::Tensor& counts, const Connectivity& to);

}  // namespace spikeforge::ops::sparse
