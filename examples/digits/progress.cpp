#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace {

std::string bar(double done) {
  constexpr int kWidth = 10;
  const int full = static_cast<int>(done * kWidth);
  return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", kWidth - full);
}

std::string minutes(double seconds) {
  const auto whole = std::lround(seconds);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(int64_t epochs, int64_t batches, bool quiet)
    : epochs_(epochs), batches_(batches), quiet_(quiet), terminal_(isatty(STDOUT_FILENO) != 0) {}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

double Progress::samples_per_second() const { return static_cast<double>(samples_) / std::max(seconds(), 1e-9); }

void Progress::redraw(const std::string& line) {
  fmt::print("\r{:<{}}", line, width_);  // padded, to wipe out a longer line
  std::fflush(stdout);
  width_ = line.size();
}

void Progress::batch(int64_t epoch, int64_t batch, int64_t samples, double loss, double accuracy) {
  samples_ += samples;
  if (quiet_ || !terminal_) return;
  const double done = static_cast<double>((epoch - 1) * batches_ + batch) / static_cast<double>(epochs_ * batches_);
  redraw(fmt::format("epoch {}/{} {} loss {:.4f} accuracy {:.1f} % {:.0f} samples/s {} left", epoch, epochs_, bar(done),
                     loss, 100 * accuracy, samples_per_second(), minutes(seconds() / done * (1 - done))));
}

void Progress::epoch(int64_t epoch, double loss, double accuracy, double test_accuracy) {
  if (quiet_) return;
  if (terminal_) {
    if (epoch == epochs_) fmt::print("\n");
    return;
  }
  const double left = seconds() / static_cast<double>(epoch) * static_cast<double>(epochs_ - epoch);
  fmt::print("epoch {:{}}/{}  loss {:.4f}  accuracy {:5.1f} %  held out {:5.1f} %  {:5.0f} samples/s  {} left\n", epoch,
             fmt::formatted_size("{}", epochs_), epochs_, loss, 100 * accuracy, 100 * test_accuracy,
             samples_per_second(), minutes(left));
  std::fflush(stdout);
}
