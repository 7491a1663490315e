// What a call from C++ costs where there is next to nothing to compute, beside torch's silu on the same tensor. The
// difference is what this library does on the host: checks, allocation, autograd, the launch.
#include "ops/neuron.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>

namespace {

using Call = std::function<at::Tensor(const at::Tensor&)>;
using Clock = std::chrono::steady_clock;

void wait_for(c10::Device device) {
  if (device.is_cuda()) at::zeros({}, at::TensorOptions(device)).item<float>();
}

// The least of many short measurements: what is above it is other programs' doing. Each begins with an idle GPU and
// ends before its queue is full, so that it is the host's time.
template <class Body> double microseconds(c10::Device device, Body&& body) {
  constexpr int calls = 50, measurements = 400;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < measurements; ++i) {
    wait_for(device);
    const auto start = Clock::now();
    for (int k = 0; k < calls; ++k) body();
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    least = std::min(least, taken.count() / calls);
  }
  return least;
}

void measure(const char* name, const Call& call, const at::Tensor& x) {
  const at::Tensor leaf = x.clone().requires_grad_();
  const at::Tensor upstream = at::randn_like(x);
  double inference = 0;
  {
    const at::NoGradGuard no_grad;
    inference = microseconds(x.device(), [&] { call(x); });
  }
  const double forward = microseconds(x.device(), [&] { call(leaf); });
  const double training = microseconds(x.device(), [&] { torch::autograd::grad({call(leaf)}, {leaf}, {upstream}); });
  std::printf("%-6s %10.2f %10.2f %10.2f\n", name, inference, forward, training);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Microseconds of small calls from C++");
  std::int64_t steps = 16, neurons = 64;
  std::string device = "cpu";
  app.add_option("--steps", steps)->capture_default_str();
  app.add_option("--neurons", neurons)->capture_default_str();
  app.add_option("--device", device)->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  const at::Tensor x = at::randn({steps, neurons}, c10::Device(device));
  std::printf("T=%ld N=%ld, %s, us a call\n", static_cast<long>(steps), static_cast<long>(neurons), device.c_str());
  std::printf("%-6s %10s %10s %10s\n", "", "inference", "forward", "training");
  measure(
      "silu", [](const at::Tensor& t) { return at::silu(t); }, x);
  measure(
      "lif", [](const at::Tensor& t) { return std::get<0>(spikeforge::lif(t)); }, x);
}
