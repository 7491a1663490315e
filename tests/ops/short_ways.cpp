// C++ functions skip the dispatcher if no mode, transform, tracer or profiler is active. If one is active, it must
// receive every call.
#include "ops/neuron.h"
#include "ops/traced.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/ir.h>

#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/ops/calls.h"

namespace spikeforge::test {
namespace {

// Records the operators that a profiler receives, until the end of the scope.
class SeenOperators {
 public:
  SeenOperators() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&began))) { names().clear(); }
  ~SeenOperators() { at::removeCallback(handle_); }
  SeenOperators(const SeenOperators&) = delete;
  SeenOperators& operator=(const SeenOperators&) = delete;

  static bool has(const std::string& name) { return names().contains(name); }

 private:
  static std::set<std::string>& names() {
    thread_local std::set<std::string> names;
    return names;
  }
  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& function) {
    names().insert(function.name());
    return nullptr;
  }

  at::CallbackHandle handle_;
};

Tensor drive() {
  at::manual_seed(20);
  return at::rand({13, 5}).mul(3);
}

const Neuron& leaky() {
  static const Neuron neuron(
      "neuron leaky(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, sigmoid(4)); return s; v' = select(s, 0, h) "
      "}");
  return neuron;
}

using Function = std::vector<Tensor> (*)(const Tensor& x);

std::vector<Tensor> by_numbers(const Tensor& x) {
  const auto [spikes, v] = lif(x, {}, {.tau = 2.5});
  return {spikes, v};
}
std::vector<Tensor> by_tensors(const Tensor& x) {
  const auto [spikes, v] = lif(x, {}, {.tau = at::scalar_tensor(2.5), .v_reset = std::nullopt});
  return {spikes, v};
}
std::vector<Tensor> by_text(const Tensor& x) {
  const auto [outputs, states] = leaky()({x}, {}, {at::scalar_tensor(2.5)});
  return {outputs[0], states[0]};
}

struct Way {
  Function function;
  const char* op;
};
constexpr Way ways[] = {{by_numbers, "spikeforge::lif"}, {by_tensors, "spikeforge::lif"}, {by_text, "spikeforge::run"}};

Tensor gradient(const std::vector<Tensor>& results, const Tensor& x) {
  return torch::autograd::grad({results[0].sum() + results[1].square().sum()}, {x})[0];
}

}  // namespace

TEST_CASE("a profiler sees the operators that C++ functions call, and changes no bit") {
  for (const Way& way : ways) {
    INFO(way.op);
    const Tensor x = drive().requires_grad_(true);
    const std::vector<Tensor> unseen = way.function(x);
    const Tensor unseen_gradient = gradient(unseen, x);
    const SeenOperators seen;
    const std::vector<Tensor> results = way.function(x);
    CHECK(seen.has(way.op));
    for (std::size_t i = 0; i < results.size(); ++i) {
      CHECK(at::equal(results[i], unseen[i]));
      CHECK(results[i].requires_grad());
      CHECK(unseen[i].requires_grad());
    }
    CHECK(at::equal(gradient(results, x), unseen_gradient));
  }
}

TEST_CASE("C++ functions give the same bits in every mode of autograd") {
  for (const Way& way : ways) {
    INFO(way.op);
    const Tensor x = drive().requires_grad_(true);
    const std::vector<Tensor> wanted = way.function(x);
    {
      const at::NoGradGuard no_grad;
      const std::vector<Tensor> results = way.function(x);
      for (std::size_t i = 0; i < results.size(); ++i) {
        CHECK(at::equal(results[i], wanted[i]));
        CHECK_FALSE(results[i].requires_grad());
        CHECK_FALSE(results[i].is_inference());
      }
    }
    const c10::InferenceMode inference;
    const std::vector<Tensor> results = way.function(x);
    for (std::size_t i = 0; i < results.size(); ++i) {
      CHECK(at::equal(results[i], wanted[i]));
      CHECK(results[i].is_inference());
    }
  }
}

TEST_CASE("a tracer records what C++ functions call") {
  for (const Way& way : ways) {
    INFO(way.op);
    const auto traced = torch::jit::tracer::trace(
        {drive()},
        [&](const torch::jit::Stack& inputs) -> torch::jit::Stack { return {way.function(inputs[0].toTensor())[0]}; },
        [](const torch::autograd::Variable&) { return std::string(); });
    bool is_recorded = false;
    for (const torch::jit::Node* node : traced.first->graph->nodes())
      is_recorded = is_recorded || node->kind() == c10::Symbol::fromQualString(way.op);
    CHECK(is_recorded);
  }
}

TEST_CASE("numbers beside tensors are checked whoever looks") {
  const auto call = [] { lif(drive(), {}, {.tau = -1, .v_threshold = at::scalar_tensor(1)}); };
  CHECK_THROWS_AS(call(), c10::ValueError);
  const SeenOperators seen;
  CHECK_THROWS_AS(call(), c10::ValueError);
}

}  // namespace spikeforge::test
