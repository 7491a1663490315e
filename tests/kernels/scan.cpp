// Time-parallel passes in which many blocks process the same neurons: when they are used, that they fit, and that they
// compile.
#include "csrc/kernels/scan/scan.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/compiles.h"
#include "tests/kernels/traced_call.h"

namespace spikeforge::tests {
namespace {

using namespace kernels;

constexpr const char* integrator = "neuron li(x; v; tau) { n = v + (x - v) / tau; return n; v' = n }";
constexpr const char* resonator =
    "neuron resonator(x; u, w; d, o) { return spike(u - 1, atan(2)); u' = d * (u * cos(o) - w * sin(o)) + x\n"
    "w' = d * (u * sin(o) + w * cos(o)) }";
constexpr const char* cascade =
    "neuron cascade(x, y; i, j, v) { k = 0.9 * i + x; l = 0.8 * j + y; n = 0.7 * v + k - l; return n, k; i' = k; "
    "j' = l; v' = n }";
constexpr const char* four =
    "neuron four(x; a, b, c, d) { return d; a' = 0.9 * a + x; b' = 0.9 * b + a; c' = 0.9 * c + b; d' = 0.9 * d + c }";
constexpr const char* spiking =
    "neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }";

constexpr int of_an_h200 = 132;

struct FewNeurons : TracedCall<ForwardLaunch, BackwardLaunch> {
  FewNeurons(const char* text, DType type, std::int64_t steps, std::int64_t neurons, bool store_states = false)
      : TracedCall(text, type, steps, neurons, neurons) {
    for (StateView& state : initial) state = {somewhere(), compute_type(type)};
    for (SequenceView& grad : grad_states) grad = {somewhere(), neurons, 1};
    forward.store_states = backward.store_states = store_states;
    forward.scan = true;
    backward.grad_initial = states;
  }
};

bool scans(const FewNeurons& call) { return plan_scan(call.forward, of_an_h200).has_value(); }
bool shares(const FewNeurons& call) { return plan_scan(call.backward, of_an_h200).has_value(); }

// ptxas may spill one or two registers, as in other kernels; in float64, 52 bytes on sm_100.
void check_kernels(const std::string& arch, const FewNeurons& call) {
  const auto forward = plan_scan(call.forward, of_an_h200);
  if (forward) check_compiles(arch, print_scan(call.forward, *forward), call.forward.type == DType::f64 ? 52 : 0);
  if (const auto backward = plan_scan(call.backward, of_an_h200))
    check_compiles(arch, print_scan(call.backward, *backward), 28);
}

void check_scans(const std::string& arch) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::f64})
    for (const char* text : {integrator, resonator, cascade, four})
      for (const bool store_states : {false, true})
        check_kernels(arch, FewNeurons(text, type, 16383, 64, store_states));
}

}  // namespace

TEST_CASE("few neurons of a long sequence are scanned, and many are not") {
  CHECK(scans(FewNeurons(integrator, DType::f32, 16384, 64)));
  CHECK(scans(FewNeurons(integrator, DType::f32, 1024, 4096)));
  CHECK_FALSE(scans(FewNeurons(integrator, DType::f32, 1024, 1 << 15)));
  CHECK_FALSE(scans(FewNeurons(integrator, DType::f32, 100, 64)));
  CHECK_FALSE(scans(FewNeurons(integrator, DType::f32, 0, 64)));
  CHECK_FALSE(scans(FewNeurons(integrator, DType::f32, 16384, 0)));
  FewNeurons step_by_step(integrator, DType::f32, 16384, 64);
  step_by_step.forward.scan = false;
  CHECK_FALSE(scans(step_by_step));
}

TEST_CASE("a backward pass of few neurons uses many blocks, for every cell") {
  CHECK(shares(FewNeurons(spiking, DType::f32, 16384, 64)));
  CHECK(shares(FewNeurons(spiking, DType::f32, 1024, 512)));
  CHECK_FALSE(shares(FewNeurons(spiking, DType::f32, 1024, 4096)));
  CHECK_FALSE(shares(FewNeurons(spiking, DType::f32, 256, 64)));
}

TEST_CASE("a scan of a few neurons fills the device with its first tiles") {
  const auto plan = plan_scan(FewNeurons(integrator, DType::f32, 16384, 64).forward, of_an_h200);
  REQUIRE(plan.has_value());
  CHECK(plan->groups == 2);
  CHECK(plan->tiles == 64);
}

TEST_CASE("usual scans compile for sm_90 without spills") {
  for (const char* text : {integrator, resonator})
    for (const DType type : {DType::f32, DType::f64}) check_kernels("sm_90", FewNeurons(text, type, 16383, 64));
}
TEST_CASE("backward passes of many blocks compile for sm_90") {
  const FewNeurons call(spiking, DType::f32, 16384, 64);
  check_compiles("sm_90", print_scan(call.backward, plan_scan(call.backward, of_an_h200).value()), 0);
}

TEST_CASE("scans compile for every architecture and spill little", "[long]") {
  for (const char* arch : {"sm_80", "sm_90", "sm_100", "sm_120"}) check_scans(arch);
}

}  // namespace spikeforge::tests
