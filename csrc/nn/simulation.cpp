#include "csrc/nn/simulation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include <unistd.h>

namespace spikeforge::nn {
namespace {

// Steps between two reads of the clock: enough for the fused operators to be efficient.
constexpr std::int64_t piece = 256;

// A progress line with the remaining time, shown only on a terminal and only for long operations.
class Progress {
 public:
  explicit Progress(std::int64_t total) : total_(total), is_terminal_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (is_shown_) std::fputs("\r\033[K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(std::int64_t done) {
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

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t total_;
  bool is_shown_ = false, is_terminal_;
  Clock::time_point start_ = Clock::now(), drawn_ = start_;
};

}  // namespace

Tensors Simulation::run(std::int64_t steps, at::TensorList inputs) {
  TORCH_CHECK_VALUE(steps >= 0, "Simulation: steps must be 0 or more, but is ", steps);
  Tensors sequences;
  for (const at::Tensor& x : inputs) {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.insert(shape.begin(), steps);
    sequences.push_back(x.unsqueeze(0).expand(shape));
  }
  return run_sequences(sequences, steps);
}

Tensors Simulation::run(const at::Tensor& x_seq) {
  TORCH_CHECK_VALUE(x_seq.defined() && x_seq.dim() >= 1, "Simulation: x_seq must be [T, *shape]");
  return run_sequences({x_seq}, x_seq.size(0));
}

Tensors Simulation::run_sequences(const Tensors& inputs, std::int64_t steps) {
  const at::NoGradGuard no_grad;
  network_->expect(steps);
  Progress progress(steps);
  std::vector<Tensors> pieces;  // of each output
  for (std::int64_t done = 0; done < steps;) {
    const std::int64_t length = std::min(piece, steps - done);
    Tensors rows;
    for (const at::Tensor& x : inputs) rows.push_back(x.narrow(0, done, length));
    Tensors outputs = network_->run(rows, length);
    pieces.resize(outputs.size());
    for (std::size_t k = 0; k < outputs.size(); ++k) pieces[k].push_back(std::move(outputs[k]));
    done += length;
    steps_ += length;
    progress.at(done);
  }
  Tensors whole;
  for (const Tensors& column : pieces) whole.push_back(column.size() == 1 ? column[0] : at::cat(column));
  return whole;
}

}  // namespace spikeforge::nn
