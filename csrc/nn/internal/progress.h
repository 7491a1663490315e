// A line on the terminal while something takes long: how far, and how long it will take. Nothing elsewhere.
#pragma once

#include <chrono>
#include <cstdint>

namespace spikeforge::nn {

class Progress {
 public:
  explicit Progress(std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(std::int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t total_;
  bool is_shown_ = false, is_terminal_;
  Clock::time_point start_ = Clock::now(), drawn_ = start_;
};

}  // namespace spikeforge::nn
