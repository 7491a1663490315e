// Networks on a GPU: how neurons are mapped to blocks, and that the kernels compile.
#include "csrc/base/somewhere.h"
#include "csrc/kernels/multistep/traced_cell.h"
#include "csrc/kernels/network/launch.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/compiles.h"

namespace spikeforge::tests {
namespace {

using namespace kernels;
using network::Sending;

constexpr jit::Device hopper{9, 0, 132};

constexpr const char* cortical =
    "neuron cortical(x; v, i, wait; current) { h = 0.99 * v + 0.0004 * i + 0.0004 * current; r = wait > 0; "
    "s = where(r, 0, spike(h - 15, none)); return s; v' = where(r, v, select(s, 0, h)); i' = 0.8 * i + x; "
    "wait' = select(s, 20, maximum(wait - 1, 0)) }";
constexpr const char* noisy =
    "neuron noisy(a, b; v; leak) { h = leak * v + a - b + 0.1 * normal(); s = spike(h - 1, none); return s; "
    "v' = select(s, 0, h) }";

// A network of populations of `sizes` neurons each, in this order; each row has this number of connections.
struct Network {
  Network(DType type, const std::vector<std::pair<const char*, std::int64_t>>& sizes, std::int64_t of_a_row) {
    launches.reserve(sizes.size());
    std::int64_t neurons = 0;
    for (const auto& [text, size] : sizes) {
      cells.push_back(intern(text));
      const TracedCell& cell = *cells.back();
      initial.emplace_back(cell.states.size(), StateView{somewhere(), type});
      params.emplace_back(cell.params.size(), ParamView{.data = somewhere(), .type = type, .count = size});
      inputs.emplace_back(cell.inputs.size());
      pointers.emplace_back(cell.states.size(), somewhere());
      ForwardLaunch& step = launches.emplace_back();
      step.cell = &cell;
      step.type = type;
      step.steps = 1;
      step.neurons = size;
      step.inputs = inputs.back();
      step.initial = initial.back();
      step.params = params.back();
      step.states = pointers.back();
      groups.push_back({&step, neurons});
      neurons += size;
    }
    launch = {
        .type = type, .groups = groups, .weights = {somewhere(), DType::f16, false}, .delays = event::Delays::bytes};
    launch.arguments.size = launch.arguments.copy_size = neurons;
    launch.arguments.matrix.nnz = neurons * of_a_row;
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  NetworkPlan plan(const jit::Device& device = hopper) const { return plan_of(launch, device).value(); }

  std::vector<std::shared_ptr<const TracedCell>> cells;
  std::vector<std::vector<StateView>> initial;
  std::vector<std::vector<ParamView>> params;
  std::vector<std::vector<SequenceView>> inputs;
  std::vector<std::vector<void*>> pointers;
  std::vector<ForwardLaunch> launches;
  std::vector<NetworkGroup> groups;
  NetworkLaunch launch;
};

TEST_CASE("every neuron of a network has a block, and no block more than the largest share") {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes{
      {1, 1}, {100, 5}, {4000, 400000}, {77169, 1}, {320000, 80000}};
  for (const auto& [a, b] : sizes) {
    const Network made(DType::f32, {{cortical, a}, {noisy, b}}, 80);
    const NetworkPlan plan = made.plan();
    INFO(a << " and " << b << " neurons");
    REQUIRE(plan.groups.size() == 2);
    CHECK(plan.blocks <= hopper.multiprocessors);
    const std::int64_t blocks[] = {plan.groups[1].first_block, plan.blocks - plan.groups[1].first_block};
    const std::int64_t neurons[] = {a, b};
    for (std::size_t g = 0; g < 2; ++g) {
      CHECK(plan.groups[g].neurons % 32 == 0);
      CHECK(blocks[g] * plan.groups[g].neurons >= neurons[g]);
      CHECK((blocks[g] - 1) * plan.groups[g].neurons < neurons[g]);
      CHECK(plan.groups[g].blocks == blocks[g]);
      CHECK(plan.groups[g].chunks == blocks[g]);
      if (plan.resident) CHECK(plan.groups[g].neurons <= plan.own_threads * plan.width_of(neurons[g]));
    }
    CHECK(plan.own_threads <= plan.threads);
  }
}

TEST_CASE("the chunks of all copies have all neurons, and are divided evenly among blocks") {
  for (const std::int64_t copies : {2, 32, 100, 131, 150, 1000})
    for (const std::int64_t size : {1, 100, 4000, 138639}) {
      Network made(DType::f32, {{cortical, copies * size}}, 10);
      made.launch.arguments.copy_size = size;
      const NetworkPlan plan = made.plan();
      const NetworkPlan::Share& share = plan.groups[0];
      INFO(copies << " copies of " << size << " neurons");
      CHECK(plan.blocks <= hopper.multiprocessors);
      CHECK(share.neurons % 32 == 0);
      CHECK(share.chunks * share.neurons >= size);
      CHECK((share.chunks - 1) * share.neurons < size);
      if (plan.resident) CHECK(share.blocks == share.chunks * copies);
      const std::int64_t of_a_block = (share.chunks * copies + share.blocks - 1) / share.blocks;
      if (size > 1000) CHECK(of_a_block * share.neurons * plan.blocks < 2 * copies * size);
    }
}

TEST_CASE("the sender of spikes follows from the length of rows and from delays of one step") {
  Network made(DType::f32, {{cortical, 77169}}, 80);
  CHECK(made.plan().sending == Sending::own);
  made.launch.arguments.matrix.nnz = std::int64_t{77169} * 3880;
  CHECK(made.plan().sending == Sending::later);
  CHECK(made.plan().resident);
  CHECK(made.plan().own_threads < made.plan().threads);
  made.launch.next_step = std::int64_t{77169} * 60;
  CHECK(made.plan().sending == Sending::own_and_later);
  made.launch.next_step = made.launch.arguments.matrix.nnz;
  CHECK(made.plan().sending == Sending::together);
  made.launch.next_step = 0;
  made.launch.arguments.peers.ranks = 2;
  made.launch.arguments.whole = 2 * 77169;
  CHECK(made.plan().sending == Sending::together);
  CHECK(made.plan().pieces == 16);  // each row has 1940 connections
  made.launch.drives = network::most_drives + 1;
  CHECK(!plan_of(made.launch, hopper).has_value());
}

TEST_CASE("a round has half the steps of the least delay, and its lists of spikes stay small") {
  Network made(DType::f32, {{cortical, 138639}}, 109);
  const auto round = [&](std::int64_t least_delay) {
    made.launch.least_delay = least_delay;
    const NetworkPlan plan = made.plan();
    CHECK((plan.sending == Sending::in_rounds) == (plan.round > 1));
    CHECK(plan.most_listed(138639) * plan.lists() <= std::int64_t{1} << 26);
    return plan.round;
  };
  CHECK(round(1) == 1);
  CHECK(round(3) == 1);
  CHECK(round(4) == 2);
  CHECK(round(18) == 9);
  CHECK(round(1000) == 32);
  made.launch.arguments.matrix.nnz = 0;
  CHECK(round(18) == 1);
  made.launch.arguments.matrix.nnz = 1000;
  made.launch.arguments.peers.ranks = 2;
  made.launch.arguments.whole = 2 * 138639;
  CHECK(round(18) == 1);
  CHECK(Network(DType::f32, {{cortical, 4000}}, 100).plan().sending == Sending::own);
}

TEST_CASE("kernels that send the spikes of other ranks compile for every architecture") {
  const std::string arch = GENERATE("sm_80", "sm_90", "sm_100", "sm_120");
  Network cortex(DType::f32, {{cortical, 77169}}, 3880);
  check_compiles(arch, print_send(cortex.launch), 0);
  Network alike(DType::f64, {{cortical, 7716}}, 388);
  alike.launch.delays = event::Delays::one;
  alike.launch.weights.homogeneous = true;
  check_compiles(arch, print_send(alike.launch), 0);
}

TEST_CASE("kernels of networks compile for every architecture") {
  const jit::Device device =
      GENERATE(jit::Device{8, 0, 108}, jit::Device{9, 0, 132}, jit::Device{10, 0, 148}, jit::Device{12, 0, 170});
  const std::string arch = jit::name_of_arch(device);
  const auto check = [&](Network& made, Sending expected, int most_spilled = 0) {
    const NetworkPlan plan = made.plan(device);
    CHECK(plan.sending == expected);
    // With 80 registers per thread, numbers that a neuron reads once per step are spilled; in rounds, also the sums
    // that are loaded ahead (observed: 204 bytes).
    const int of_80_registers = plan.is_in_rounds() ? 224 : 128;
    check_compiles(arch, print_source(made.launch, plan), plan.threads == 768 ? of_80_registers : most_spilled);
  };
  Network cortex(DType::f32, {{cortical, 77169}}, 3880);
  cortex.launch.drives = 1;
  cortex.launch.next_step = 100;
  check(cortex, Sending::own_and_later);
  cortex.launch.next_step = 0;
  check(cortex, Sending::later);
  Network both(DType::f64, {{cortical, 500000}, {noisy, 200000}}, 3880);
  both.launch.drives = 2;
  both.launch.next_step = both.launch.arguments.matrix.nnz;
  both.launch.delays = event::Delays::one;
  both.launch.weights.homogeneous = true;
  check(both, Sending::together, 16);  // two doubles, on sm_120
  Network large(DType::f32, {{cortical, 231507}, {noisy, 20}}, 1300);
  large.launch.drives = 1;
  large.launch.next_step = 100;
  CHECK(large.plan().resident);
  check(large, Sending::own_and_later);
  Network small(DType::f32, {{noisy, 3200}, {cortical, 800}}, 80);
  small.launch.weights.type = DType::f32;
  check(small, Sending::own);
  for (Network* const made : {&cortex, &both, &large, &small}) {
    made->launch.least_delay = 18;
    made->launch.arriving = 1;
    check(*made, Sending::in_rounds, arch == "sm_120" ? 752 : 136);  // doubles of two kinds of neuron
  }
  Network copies(DType::f32, {{cortical, 32 * 138639}}, 0);
  copies.launch.drives = 1;
  copies.launch.arguments.copy_size = 138639;
  copies.launch.arguments.matrix.nnz = 138639 * 109;
  check(copies, Sending::own);
  copies.launch.least_delay = 18;
  copies.launch.arriving = 1;
  check(copies, Sending::in_rounds, 128);
  CHECK(!copies.plan().skips);
  copies.launch.may_skip = true;
  CHECK(copies.plan().skips);
  CHECK(copies.plan().round == copies.plan().most_listed(1));
  check(copies, Sending::in_rounds, 128);
  Network few_copies(DType::f64, {{noisy, 8 * 3200}, {cortical, 8 * 800}}, 10);
  few_copies.launch.arguments.copy_size = 4000;
  few_copies.launch.arguments.copy_columns = 8000;
  few_copies.launch.drives = 2;
  CHECK(few_copies.plan().resident);
  check(few_copies, Sending::own);
  few_copies.launch.least_delay = 18;
  few_copies.launch.arriving = 2;
  check(few_copies, Sending::in_rounds, 544);  // doubles of two kinds of neuron, with two drives and inputs
  Network shared(DType::f32, {{cortical, 38585}, {noisy, 20}}, 3880);
  shared.launch.drives = 1;
  shared.launch.arguments.whole = 77210;
  shared.launch.arguments.peers.ranks = 2;
  check(shared, Sending::together);
}

TEST_CASE("kernels that bring connections of delay 1 to the front compile") {
  const std::string arch = GENERATE("sm_80", "sm_90", "sm_100", "sm_120");
  for (const int weight_bytes : {0, 2, 4, 8})
    for (const int delay_bytes : {1, 4}) check_compiles(arch, print_near_first(weight_bytes, delay_bytes), 0);
}

}  // namespace
}  // namespace spikeforge::tests
