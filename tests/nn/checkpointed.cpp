// Sequences in segments have the values and gradients of a single call over all steps.
#include "csrc/nn/checkpointed.h"
#include "ops/neuron.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/nn/modules.h"

namespace spikeforge::test {
namespace {

constexpr std::int64_t segments = 4, steps = 5;

struct Drive {
  Tensor x = at::rand({segments * steps, 3, 6}, at::kDouble) * 3;
  Tensor w = at::rand({6, 6}, at::kDouble).sub(0.3).requires_grad_();
  Tensor v = at::rand({3, 6}, at::kDouble).requires_grad_();

  Segment run(const Tensor& part, const Tensor& before) const {
    auto [spikes, after] = lif(part.matmul(w), before);
    return {spikes.square().sum() + after.sum(), {after}};
  }
  SegmentRun in_segments() const {
    return [*this](std::int64_t number, const std::vector<Tensor>& states) {
      return run(x.narrow(0, number * steps, steps), states[0]);
    };
  }
  // The reference: a plain loop that keeps all intermediate results.
  Segment by_loop(bool truncated) const {
    Segment all{{}, {v}};
    for (std::int64_t number = 0; number < segments; ++number) {
      const Tensor& before = all.states[0];
      Segment next = run(x.narrow(0, number * steps, steps), truncated ? before.detach() : before);
      all = {all.output.defined() ? all.output + next.output : next.output, next.states};
    }
    return all;
  }
};

TEST_CASE("segments have the gradients of a loop that keeps everything") {
  torch::manual_seed(7);
  const Drive drive;
  for (const bool truncated : {false, true}) {
    INFO(truncated);
    const std::vector<Tensor> wanted = truncated ? std::vector<Tensor>{drive.w} : std::vector<Tensor>{drive.w, drive.v};
    const Segment expected = drive.by_loop(truncated);
    const Segment got = checkpointed(drive.in_segments(), segments, {drive.w}, {{drive.v}, truncated});
    CHECK(at::allclose(expected.output, got.output, /*rtol=*/1e-12));
    CHECK(at::allclose(expected.states[0], got.states[0], /*rtol=*/1e-12, /*atol=*/1e-12));
    const auto grads = torch::autograd::grad({expected.output + expected.states[0].sum()}, wanted);
    const auto again = torch::autograd::grad({got.output + got.states[0].sum()}, wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CHECK(grads[i].abs().max().item<double>() > 0);
      CHECK(at::allclose(grads[i], again[i], /*rtol=*/1e-12, /*atol=*/1e-12));
    }
  }
}

TEST_CASE("a segment draws the same random numbers the second time, and those after it go on") {
  const Tensor w = at::rand({4}, at::kDouble).requires_grad_();
  const auto run = [&](std::int64_t, const std::vector<Tensor>&) -> Segment {
    return {at::dropout(w * at::rand({50, 4}, at::kDouble), 0.5, /*train=*/true).square().sum(), {}};
  };
  torch::manual_seed(9);
  Tensor expected;
  for (std::int64_t number = 0; number < segments; ++number) {
    const Tensor loss = run(number, {}).output;
    expected = expected.defined() ? expected + loss : loss;
  }
  const Tensor next = at::rand({3});
  torch::manual_seed(9);
  const Tensor loss = checkpointed(run, segments, {w}).output;
  const Tensor grad = torch::autograd::grad({loss}, {w})[0];
  CHECK(at::equal(at::rand({3}), next));
  CHECK(at::equal(loss, expected));
  CHECK(at::allclose(grad, torch::autograd::grad({expected}, {w})[0], /*rtol=*/1e-12));
}

TEST_CASE("checkpointed raises clear errors") {
  const auto grows = [](std::int64_t number, const std::vector<Tensor>&) -> Segment {
    return {at::rand({}), std::vector<Tensor>(static_cast<std::size_t>(number), at::rand({2}))};
  };
  CHECK_THROWS_WITH(checkpointed(grows, 0, {}), has_text("segments must be 1 or more, but is 0"));
  CHECK_THROWS_WITH(checkpointed(grows, 2, {}), has_text("segment 1 returned 1 states, but earlier ones 0"));
}

}  // namespace
}  // namespace spikeforge::test
