// A cell as a loop of torch operations with torch's autograd: the reference for the results and gradients of
// spikeforge::run. The only code that it shares with the library is the graph, and the surrogates, which
// tests/python/multistep/test_surrogates.py compares with their formulas.
#pragma once

#include "csrc/graph/cell.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace spikeforge::test {

using Tensor = at::Tensor;
using Tensors = std::vector<Tensor>;

// inputs [T, N], states [N], params [N] or 0-d. Gives the outputs [T, N], then the states of every step [T, N].
Tensors run_torch_loop(const graph::Cell& cell, const Tensors& inputs, const Tensors& states, const Tensors& params);

}  // namespace spikeforge::test
