#include "csrc/nn/simulation.h"
#include "csrc/nn/internal/progress.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>

namespace spikeforge::nn {
namespace {

// Steps between two looks at the clock: a piece is long enough for the fused operators to be worth it.
constexpr std::int64_t piece = 256;

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
