// Shows the progress of training: a bar on a terminal, otherwise a line per epoch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

class Progress {
 public:
  Progress(int64_t epochs, int64_t batches, bool quiet);

  // After each batch: the loss and accuracy of this epoch so far.
  void batch(int64_t epoch, int64_t batch, int64_t samples, double loss, double accuracy);

  // After each epoch, with the accuracy on the held-out digits.
  void epoch(int64_t epoch, double loss, double accuracy, double test_accuracy);

  double samples_per_second() const;

 private:
  double seconds() const;
  void redraw(const std::string& line);

  int64_t epochs_, batches_;
  bool quiet_, terminal_;
  int64_t samples_ = 0;
  size_t width_ = 0;  // of the line on the terminal
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};
