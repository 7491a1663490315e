// The gradient of a matrix that all steps and samples share.
#pragma once

#include <ATen/core/Tensor.h>

namespace spikeforge::ops {

// [..., n] as [rows, n]; torch's own reshape cannot infer the number of rows of an empty tensor.
at::Tensor in_rows(const at::Tensor& t);

// The sum over all rows of a [..., n] and b [..., m], as [n, m].
at::Tensor rows_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace spikeforge::ops
