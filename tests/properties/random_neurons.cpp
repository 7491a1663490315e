// Random neurons with all operations: all results and gradients of the operator equal those of a torch loop over the
// equations, and a GPU agrees with the CPU. A neuron that fails is reduced to a short text.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include "csrc/graph/text.h"
#include "ops/traced.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/catch.h"
#include "tests/graph/random_graph.h"
#include "tests/properties/torch_reference.h"

namespace spikeforge::test {
namespace {

constexpr std::int64_t steps = 4, neurons = 16;

// A call of a neuron: its arguments, and the upstream gradients of the backward pass.
struct Call {
  Tensors inputs, states, params;
  Tensors upstream;  // for the outputs, then for the sequences of states

  Tensors leaves() const {
    Tensors all = inputs;
    for (const Tensors* const more : {&states, &params}) all.insert(all.end(), more->begin(), more->end());
    return all;
  }

  template <class F> Call map(F&& f) const {
    const auto each = [&f](const Tensors& list) {
      Tensors result;
      for (const Tensor& t : list) result.push_back(f(t));
      return result;
    };
    return {each(inputs), each(states), each(params), each(upstream)};
  }
};

Tensor uniform(Dice& dice, at::IntArrayRef shape) {
  Tensor t = at::empty(shape, at::kDouble);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.mutable_data_ptr<double>()[i] = dice.uniform(-2, 2);
  return t;
}

Call random_call(const graph::Cell& cell, std::uint64_t seed) {
  Dice dice(seed + 0x5eed);
  Call call;
  for (std::size_t i = 0; i < cell.input_count(); ++i) call.inputs.push_back(uniform(dice, {steps, neurons}));
  for (std::size_t s = 0; s < cell.state_count(); ++s) call.states.push_back(uniform(dice, {neurons}));
  for (std::size_t j = 0; j < cell.param_count(); ++j)
    call.params.push_back(dice.chance(.5) ? uniform(dice, {neurons}) : uniform(dice, {}));
  for (std::size_t k = 0; k < cell.output_count() + cell.state_count(); ++k)
    call.upstream.push_back(uniform(dice, {steps, neurons}));
  return call;
}

// Results, and the gradients of all arguments, in float64 on the CPU.
struct Outcome {
  Tensors results, gradients;
};

template <class Run> Outcome outcome_of(const Call& given, Run&& run) {
  const Call call = given.map([](const Tensor& t) { return t.detach().clone().requires_grad_(true); });
  Outcome outcome{run(call), {}};
  Tensors differentiable, upstream;
  for (std::size_t k = 0; k < outcome.results.size(); ++k)
    if (outcome.results[k].requires_grad()) {
      differentiable.push_back(outcome.results[k]);
      upstream.push_back(call.upstream[k].detach());
    }
  const Tensors leaves = call.leaves();
  if (!differentiable.empty())
    outcome.gradients = torch::autograd::grad(differentiable, leaves, upstream, /*retain_graph=*/std::nullopt,
                                              /*create_graph=*/false, /*allow_unused=*/true);
  outcome.gradients.resize(leaves.size());
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (!outcome.gradients[i].defined()) outcome.gradients[i] = at::zeros_like(leaves[i]);
  for (Tensors* const list : {&outcome.results, &outcome.gradients})
    for (Tensor& t : *list) t = t.detach().to(at::kCPU, at::kDouble);
  return outcome;
}

Outcome run_operator(const graph::Cell& cell, const Call& call) {
  return outcome_of(call, [&](const Call& at) {
    auto [results, states] = Neuron(cell)(at.inputs, at.states, at.params, /*store_states=*/true);
    results.insert(results.end(), states.begin(), states.end());
    return results;
  });
}

Outcome run_reference(const graph::Cell& cell, const Call& call) {
  return outcome_of(call, [&](const Call& at) { return run_torch_loop(cell, at.inputs, at.states, at.params); });
}

struct Tally {
  std::int64_t compared = 0, excluded = 0, telling = 0;  // telling: compared, and not 0

  void print(const char* what) const {
    const double all = double(compared + excluded);
    std::printf("%s: %lld numbers compared, %lld (%.3f %%) excluded, %.0f %% telling\n", what,
                static_cast<long long>(compared), static_cast<long long>(excluded), 100 * double(excluded) / all,
                100 * double(telling) / all);
  }
  void check(double most_excluded) const {
    CHECK(double(excluded) < most_excluded * double(compared + excluded));
    CHECK(3 * telling > compared);
  }
};

struct Pair {
  Tensor actual, expected, nudged;
};

// Returns an empty string if the outcomes agree, otherwise a description of the difference. A number is excluded if the
// expected one is not finite, or if a small change of the arguments changes it by more than the bound, because rounding
// then crosses a threshold or is amplified.
std::string compare(const Outcome& actual, const Outcome& expected, const Outcome& nudged, double bound, Tally& tally) {
  const auto differs = [&](const Pair& pair) -> std::string {
    const Tensor scale = pair.expected.abs().clamp_min(1);
    const Tensor moved = (pair.nudged - pair.expected).abs();
    const Tensor counts = pair.expected.isfinite().logical_and(moved <= bound * scale);
    const Tensor wrong = (pair.actual - pair.expected).abs().le(2 * bound * scale).logical_not().logical_and(counts);
    const std::int64_t count = counts.sum().item<std::int64_t>();
    tally.compared += count;
    tally.excluded += counts.numel() - count;
    tally.telling += counts.logical_and(pair.expected != 0).sum().item<std::int64_t>();
    if (!wrong.any().item<bool>()) return "";
    const std::int64_t i = wrong.flatten().nonzero()[0].item<std::int64_t>();
    char text[128];
    std::snprintf(text, sizeof text, "[%lld] is %.17g, expected %.17g", static_cast<long long>(i),
                  pair.actual.flatten()[i].item<double>(), pair.expected.flatten()[i].item<double>());
    return text;
  };
  for (std::size_t k = 0; k < expected.results.size(); ++k)
    if (const std::string what = differs({actual.results[k], expected.results[k], nudged.results[k]}); !what.empty())
      return "result " + std::to_string(k) + what;
  for (std::size_t i = 0; i < expected.gradients.size(); ++i)
    if (const std::string what = differs({actual.gradients[i], expected.gradients[i], nudged.gradients[i]});
        !what.empty())
      return "gradient " + std::to_string(i) + what;
  return "";
}

// Returns the call with each number changed by a different fraction of the relative change `by`.
Call nudged(const Call& call, double by) {
  double phase = 0;
  return call.map([&](const Tensor& t) {
    const Tensor share = at::arange(t.numel(), at::kDouble).mul(12.9898).add(++phase).sin();
    return t * share.mul(by).add(1).view_as(t);
  });
}

using Complaint = std::function<std::string(const graph::Cell& cell, std::uint64_t seed, Tally&)>;

std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// SPIKEFORGE_SHARD=2/8 selects every eighth neuron, from the second on, so that eight processes can compile kernels in
// parallel.
struct Shard {
  std::uint64_t index = 1, count = 1;
};

Shard shard() {
  Shard mine;
  const std::string text = setting("SPIKEFORGE_SHARD");
  if (const std::size_t slash = text.find('/'); slash != std::string::npos)
    mine = {std::stoull(text.substr(0, slash)), std::stoull(text.substr(slash + 1))};
  return mine;
}

// Tests `count` random neurons. A failure prints the shortest failing text that was found.
Tally check_random_neurons(std::uint64_t count, const Complaint& complaint) {
  Tally tally;
  const Shard mine = shard();
  for (std::uint64_t seed = mine.index - 1; seed < count; seed += mine.count) {
    const graph::Cell cell = random_cell(seed, {.operations = seed % 3 == 0 ? 24 : 10});
    if (complaint(cell, seed, tally).empty()) continue;
    Tally unused;
    const auto fails = [&](const graph::Cell& candidate) {
      try {
        return !complaint(candidate, seed, unused).empty();
      } catch (const std::exception&) {
        return false;
      }
    };
    const graph::Cell smallest = shrunk(cell, fails);
    FAIL("seed " << seed << ": " << complaint(smallest, seed, unused) << "\n" << print(smallest));
  }
  return tally;
}

// Alternates between float64 and float32.
void check_device(at::Device device, std::uint64_t count) {
  const Tally tally = check_random_neurons(count, [&](const graph::Cell& cell, std::uint64_t seed, Tally& counts) {
    const bool is_double = seed % 2 == 0;
    const auto on = [&](at::Device where, const Call& call) {
      return run_operator(cell,
                          call.map([&](const Tensor& t) { return t.to(where, is_double ? at::kDouble : at::kFloat); }));
    };
    const double bound = is_double ? 1e-7 : 1e-3, nudge = is_double ? 1e-13 : 5e-7;
    const Call call = random_call(cell, seed);
    return compare(on(device, call), on(at::kCPU, call), on(at::kCPU, nudged(call, nudge)), bound, counts);
  });
  tally.print("GPU and CPU, float64 and float32");
  tally.check(.01);
}

}  // namespace

TEST_CASE("random neurons are loops of torch operations, with torch's gradients") {
  constexpr double bound = 1e-7, nudge = 1e-13;
  const Tally tally = check_random_neurons(2000, [&](const graph::Cell& cell, std::uint64_t seed, Tally& counts) {
    const Call call = random_call(cell, seed);
    return compare(run_operator(cell, call), run_reference(cell, call), run_reference(cell, nudged(call, nudge)), bound,
                   counts);
  });
  tally.print("operator and torch, float64");
  tally.check(.01);
}

TEST_CASE("random neurons on a GPU are what they are on the CPU") {
  if (!at::hasCUDA()) {
    if (setting("SPIKEFORGE_REQUIRE_CUDA") == "1") FAIL("no CUDA GPU on this machine");
    SPIKEFORGE_SKIP("no CUDA GPU on this machine");
  }
  check_device(at::kCUDA, 300);
}

}  // namespace spikeforge::test
