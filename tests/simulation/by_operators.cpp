// The operators that run the steps on a GPU give the same bits as the CPU's steps.
#include "ops/kernel_pack.h"

#include <ATen/ops/allclose.h>

#include "tests/catch.h"
#include "tests/simulation/neurons.h"

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
  CHECK(same(recorded, expected));
}

TEST_CASE("connections learn from C++, alike in the CPU's own steps and by operators") {
  const auto learning = [](std::size_t& number) {
    TestNetwork made = test_network(true);
    number = made.network.project(
        made.a, made.b,
        {.rule = "fixed_in_degree",
         .amount = 20,
         .weight = {.first = 0.02},
         .delay = {.law = "uniform", .first = 1, .second = 4}},
        Plasticity{
            "synapse s(w, c; x; k; m) { on pre { x' = x + 1 }; on post { c' = c + k * x }; on m { w' = w + m * c }; "
            "decay x by 5; decay c by 50 }",
            {{"k", 0.01}}});
    made.network.modulate("m", 0.1);
    return made;
  };
  std::size_t first = 0, second = 0;
  TestNetwork here = learning(first), there = learning(second);
  const Recording expected = simulate(here.network, 70);
  record_kernels({"sm_90"});
  const Recording recorded = simulate(there.network, 70);
  CHECK(same(recorded, expected));
  const Learned learned = here.network.learned(first);
  CHECK(learned.states[0].first == "w");
  CHECK(learned.traces[0].second.numel() == 60);
  CHECK(learned.matrix.indptr.numel() == 61);
  CHECK(learned.states[0].second.max().item<double>() > 0.021);
  CHECK(at::allclose(learned.states[0].second, there.network.learned(second).states[0].second, 1e-12, 0));
  CHECK_THROWS_WITH(here.network.learned(1), has_text("Network: 1 projections learn, so that there is no number 1"));
  CHECK_THROWS_WITH(here.network.modulate("n", 1),
                    has_text("Network: no projection learns by a rule with the signal n"));
}

}  // namespace spikeforge::test
