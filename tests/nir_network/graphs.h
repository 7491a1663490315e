// Small graphs in which all neurons have different parameters.
#pragma once
#include "csrc/nir/error.h"
#include "csrc/nir/network/from_module.h"
#include "csrc/nir/network/to_module.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <random>

#include "tests/catch.h"

namespace spikeforge::test {

constexpr double dt = 1e-3;

inline nir::Array between(double low, double high, nir::Shape shape, double quantum = 0) {
  static std::mt19937 random(1);
  std::vector<double> values(static_cast<std::size_t>(nir::count_of(shape)));
  for (double& value : values) {
    value = std::uniform_real_distribution<double>(low, high)(random);
    if (quantum > 0) value = std::round(value / quantum) * quantum;
  }
  return nir::Array::of<double>(std::move(shape), values);
}

// Weights and inputs have few bits, so that the sums of a layer are exact in any order of summation.
inline nir::Array weights(double low, double high, nir::Shape shape) {
  return between(low, high, std::move(shape), /*quantum=*/1 / 64.);
}

inline at::Tensor inputs(at::IntArrayRef sizes, at::ScalarType dtype = c10::kDouble) {
  return (at::randn(sizes, dtype) * 64).round() / 64;
}

inline void round_parameters(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& values : module.parameters()) values.copy_((values * 64).round() / 64);
}

inline nir::LIF lif(const nir::Shape& s) {
  return {between(3 * dt, 9 * dt, s), between(1, 3, s), between(-.2, .2, s), between(.2, .8, s), between(-.2, .1, s)};
}

// input -> conv -> lif -> flatten -> dense -> cell with a cycle over w -> output, and a branch around it.
inline nir::Graph network() {
  using namespace nir;
  Graph graph;
  graph.nodes = {
      {"cell.lif", {lif({5}), {}}},
      {"conv",
       {Conv2d{{}, weights(-.6, .8, {3, 2, 3, 3}), {1, 1}, {PaddingMode::same, {}}, {1, 1}, 1, weights(-.1, .1, {3})},
        {}}},
      {"cuba",
       {CubaLIF{between(3 * dt, 9 * dt, {5}), between(3 * dt, 9 * dt, {5}), between(1, 3, {5}), between(-.2, .2, {5}),
                between(.1, .4, {5}), between(-.1, .1, {5}), between(.5, 2, {5})},
        {}}},
      {"dense", {Affine{weights(-.5, .6, {5, 60}), weights(0, .5, {5})}, {}}},
      {"flat", {Flatten{0, -1, {}}, {}}},
      {"input", {Input{{2, 4, 5}}, {}}},
      {"lif", {lif({3, 4, 5}), {}}},
      {"output", {Output{Shape{5}}, {}}},
      {"w", {Linear{weights(-1, 1, {5, 5})}, {}}}};
  graph.edges = {{"input", "conv"},     {"conv", "lif"},   {"lif", "flat"},      {"flat", "dense"}, {"w", "cell.lif"},
                 {"dense", "cell.lif"}, {"cell.lif", "w"}, {"cell.lif", "cuba"}, {"dense", "cuba"}, {"cuba", "output"}};
  return graph;
}

inline nir::ModuleOptions in_float64() { return {.dt = dt, .dtype = c10::kDouble}; }

inline std::string refusal(const nir::Graph& graph, const nir::ModuleOptions& options = {.dt = dt}) {
  return message_of<nir::Error>([&] { nir::to_module(graph, options); });
}

}  // namespace spikeforge::test
