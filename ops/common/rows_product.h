// The gradient of a matrix that is shared by all steps and samples.
#pragma once

#include <ATen/core/Tensor.h>

namespace spikeforge::ops {

// Reshapes [..., n] to [rows, n]. torch's reshape cannot infer the number of rows of an empty tensor.
at::Tensor in_rows(const at::Tensor& t);

// Returns the sum of the outer products of all rows of a [..., n] and b [..., m], as [n, m].
at::Tensor rows_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace spikeforge::ops
