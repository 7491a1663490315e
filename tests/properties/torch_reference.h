// A cell as a loop of torch operations under torch's own autograd: the definition of what spikeforge::run computes, and
// of its gradients. It shares no code with the library but the graph, and the surrogates, which
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
