#include "csrc/nn/internal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace spikeforge::nn {

Progress::Progress(std::int64_t total) : total_(total), is_terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (is_shown_) std::fputs("\r\033[K", stderr);
}

void Progress::at(std::int64_t done) {
  using namespace std::chrono_literals;
  const auto now = Clock::now();
  if (!is_terminal_ || done == 0 || now - start_ < 1s || now - drawn_ < 100ms) return;
  constexpr int width = 20;
  const double part = static_cast<double>(done) / static_cast<double>(total_);
  const double left = std::chrono::duration<double>(now - start_).count() / part * (1 - part);
  const int full = static_cast<int>(part * width);
  std::fprintf(stderr, "\r[%s%s] step %lld of %lld, %d:%02d left\033[K", std::string(full, '#').c_str(),
               std::string(width - full, '.').c_str(), static_cast<long long>(done), static_cast<long long>(total_),
               static_cast<int>(left) / 60, static_cast<int>(left) % 60);
  std::fflush(stderr);
  is_shown_ = true;
  drawn_ = now;
}

}  // namespace spikeforge::nn
