// The steps that a GPU takes, by operators, are those of the CPU's threads, bit for bit.
#include <spikeforge/ops/kernel_pack.h>

#include <ATen/ops/equal.h>

#include "catch.h"
#include "neurons.h"

namespace spikeforge::test {

TEST_CASE("steps by operators, as a kernel pack records them, give the bits of the CPU's own steps") {
  TestNetwork here = test_network(true), there = test_network(true);
  const auto options = [](const TestNetwork& made) {
    return SimulateOptions{.states = {{made.a, "v", {0, 30, 59}}, {made.b, "v", {3}}, {made.c, "v", {14}}}};
  };
  const Recording expected = simulate(here.network, 70, options(here));
  record_kernels({"sm_90"});
  const Recording recorded = simulate(there.network, 70, options(there));
  CHECK(expected.steps.numel() > 100);
  CHECK(at::equal(recorded.steps, expected.steps));
  CHECK(at::equal(recorded.neurons, expected.neurons));
  for (std::size_t i = 0; i < expected.states.size(); ++i) CHECK(at::equal(recorded.states[i], expected.states[i]));
}

}  // namespace spikeforge::test
