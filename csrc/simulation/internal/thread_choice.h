// Chooses between a step on all threads and on one thread, from recent times. A parallel region waits for its slowest
// thread, so that if other programs run on the same cores, as other seeds of the same simulation often do, several
// threads may take ten times as long as one. Results are the same.
#pragma once

#include "csrc/base/export.h"

#include <chrono>

namespace spikeforge {
class Network;
}

namespace spikeforge::simulation {

class ThreadChoice {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // Uses all threads, even if one thread is faster.
  void always_share() { always_ = true; }

  bool shares() const { return always_ || at_ < trial || (at_ >= 2 * trial && shared_ < alone_); }

  // The duration of the step for which shares() was called.
  void took(Duration duration) {
    if (at_ < trial)
      shared_ += duration;
    else if (at_ < 2 * trial)
      alone_ += duration;
    if (++at_ == period) {
      at_ = 0;
      shared_ = alone_ = {};
    }
  }

 private:
  static constexpr int trial = 4, period = 1024;  // steps

  bool always_ = false;
  int at_ = 0;
  Duration shared_{}, alone_{};
};

// Builds a network on the CPU and makes all threads share every step, so that tests do not depend on timing.
SPIKEFORGE_API void always_share(Network& network);

}  // namespace spikeforge::simulation
