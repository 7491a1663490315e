// Whether threads share a step or one takes all of it: whichever was faster of late. A parallel region waits for its
// slowest thread, so that where other programs run on the same cores, as other seeds of the same simulation often do,
// sharing may take ten times as long as not sharing. Results are the same.
#pragma once

#include <chrono>

namespace spikeforge::simulation {

class ThreadChoice {
 public:
  using Duration = std::chrono::steady_clock::duration;

  bool shares() const { return at_ < trial || (at_ >= 2 * trial && shared_ < alone_); }

  // Of the step that shares() was asked for.
  void took(Duration duration) {
    if (at_ < trial)
      shared_ += duration;
    else if (at_ < 2 * trial)
      alone_ += duration;
    if (++at_ == period) *this = {};
  }

 private:
  static constexpr int trial = 4, period = 1024;  // steps

  int at_ = 0;
  Duration shared_{}, alone_{};
};

}  // namespace spikeforge::simulation
