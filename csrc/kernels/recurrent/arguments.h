// A kernel's arguments: the 8-byte words of the argument structs of cuda/recurrent/forward.cuh and
// recurrent_backward.cuh, in their order.
#pragma once

#include "csrc/kernels/multistep/arguments.h"
#include "csrc/kernels/recurrent/launch.h"

namespace spikeforge::kernels {

class RecurrentArguments : public ArgumentWords {
 public:
  explicit RecurrentArguments(const RecurrentForwardLaunch& launch) {
    add_call(launch, launch.recurrence);
    add(launch.spikes.data);
    add_results(launch);
    add(launch.current);
    add_samples(launch);
  }

  explicit RecurrentArguments(const RecurrentBackwardLaunch& launch) {
    add_call(launch, launch.recurrence);
    add_gradients(launch);
    add_samples(launch);
  }

 private:
  void add_call(const Launch& launch, const Recurrence& recurrence) {
    add(launch.steps);
    add(launch.neurons);
    add(recurrence.batch);
    add(recurrence.width);
    add_cell(launch);
    add(recurrence.w);
    add(recurrence.scratch);
  }
};

}  // namespace spikeforge::kernels
