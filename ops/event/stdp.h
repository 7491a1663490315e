// Changes of the weights of a neuron's connections at its spikes.
#pragma once

#include "ops/event/product.h"

namespace spikeforge::ops::sparse {

// For every row with an event: weight[k] += trace[column of k], then clipped, over the nonzeros k of the row. With
// `slots` the weight of nonzero k is weight[slots[k]].
struct WeightUpdate {
  at::Tensor weights;  // contiguous
  HeldRows matrix;
  at::Tensor slots;  // int64 [nnz], or undefined
  at::Tensor events;
  at::Tensor trace;  // in the compute type of the weights
  double least, most;
  const unsigned* refused = nullptr;  // of verify_on_gpu
};

// The kernel that does it on a GPU.
event::KernelSpec gpu_update(const WeightUpdate& update);

void update_weights_cpu(const WeightUpdate& update);
void update_weights_cuda(const WeightUpdate& update);

}  // namespace spikeforge::ops::sparse
