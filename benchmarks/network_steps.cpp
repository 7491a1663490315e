// What a step of a network costs on the CPU: three layers of neurons at batch 1, one step at a time and as one run,
// beside torch's bare Linear calls of the same network.
#include "csrc/nn/containers.h"
#include "csrc/nn/neurons.h"
#include "csrc/nn/simulation.h"
#include "csrc/nn/time_distributed.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

namespace {

namespace nn = spikeforge::nn;
using Clock = std::chrono::steady_clock;

// The least of several measurements: what is above it is other programs' doing.
template <class Body> double microseconds(int calls, Body&& body) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 30; ++i) {
    const auto start = Clock::now();
    for (int k = 0; k < calls; ++k) body();
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    least = std::min(least, taken.count() / calls);
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Microseconds a step of a network of three layers, Linear and LIF each");
  std::int64_t neurons = 512, steps = 1000;
  app.add_option("--neurons", neurons, "of each layer")->capture_default_str();
  app.add_option("--steps", steps, "of a run")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  torch::nn::Linear a(neurons, neurons), b(neurons, neurons), c(neurons, neurons);
  const at::Tensor x = at::rand({1, neurons}) * 3, x_seq = at::rand({steps, 1, neurons}) * 3;

  const auto report = [](const char* what, double us) { std::printf("%-44s %8.2f us a step\n", what, us); };
  report("the three Linear alone", microseconds(100, [&] { c(b(a(x))); }));
  nn::LIF first, second, third;
  report("three LIF alone", microseconds(100, [&] { third->step(second->step(first->step(x))); }));
  nn::Sequential net(a, nn::LIF(), b, nn::LIF(), c, nn::LIF());
  report("Sequential, step by step", microseconds(100, [&] { net->step(x); }));
  net->reset();
  report("a run", microseconds(1, [&] { nn::Simulation(net).run(x_seq); }) / static_cast<double>(steps));
  nn::Sequential folded{nn::TimeDistributed(a), nn::LIF(), nn::TimeDistributed(b), nn::LIF(),
                        nn::TimeDistributed(c), nn::LIF()};
  report("a run, each Linear as TimeDistributed",
         microseconds(1, [&] { nn::Simulation(folded).run(x_seq); }) / static_cast<double>(steps));
}
