#include "csrc/kernels/event/connect.h"
#include "csrc/kernels/event/plan.h"
#include "csrc/kernels/event/plastic.h"
#include "csrc/kernels/event/spec.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/compiles.h"

namespace spikeforge::tests {
namespace {

using event::ConnectStep;
using event::Kernel;
using event::KernelSpec;
using event::NumberType;
using event::Sums;

// The maximum number of spilled bytes of some kernels, with NVRTC 13.0: 100 in the deterministic scatter (sm_120), 20
// in the scatter that sums within a block (sm_90), 24 for packed events with weights (sm_120), 48 for plasticity with
// double weights (sm_90), and 64 for draws of the normal distribution (sm_80).
constexpr int spilled_by_fixed_sums = 128;
constexpr int spilled_by_bits = 24;
constexpr int spilled_by_plasticity = 48;
constexpr int spilled_by_draws = 64;

int allowed_spill(const KernelSpec& spec) {
  if (spec.kernel == Kernel::gather_bits) return spilled_by_bits;
  if (spec.kernel == Kernel::plasticity) return spilled_by_plasticity;
  if (spec.kernel == Kernel::jit_gather || spec.kernel == Kernel::jit_scatter) return spilled_by_draws;
  return spec.kernel == Kernel::scatter && spec.sums == Sums::fixed ? spilled_by_fixed_sums : parked_bytes;
}

// Every kernel with every kind of value and sum, each with float64 and with one other type. The other types are
// assigned cyclically.
std::vector<KernelSpec> all_specs() {
  std::vector<KernelSpec> list;
  int turn = 0;
  for (int kernel = 0; kernel <= static_cast<int>(Kernel::plasticity); ++kernel)
    for (const event::Values values : {event::Values::event, event::Values::graded, event::Values::number})
      for (const bool homogeneous : {false, true})
        for (const Sums sums : {Sums::counts, Sums::floats, Sums::fixed})
          for (const bool wide : {false, true}) {
            KernelSpec spec{
                .kernel = static_cast<Kernel>(kernel), .values = values, .homogeneous = homogeneous, .sums = sums};
            const bool by_columns = spec.kernel == Kernel::scatter || spec.kernel == Kernel::finish;
            const bool counts = values == event::Values::event && homogeneous;
            if (by_columns && (sums == Sums::counts) != counts) continue;
            if (!by_columns && sums != (spec.kernel == Kernel::limits ? Sums::fixed : Sums::floats)) continue;
            if (spec.kernel == Kernel::gather_bits && values != event::Values::event) continue;
            const bool has_gradient = spec.kernel == Kernel::gather_with_gradient;
            if (has_gradient && (values != event::Values::number || homogeneous)) continue;
            spec.weight = wide ? DType::f64 : static_cast<DType>(turn / 2 % 3);
            spec.entry = values == event::Values::number ? event::entry_type(spec.weight)
                                                         : static_cast<event::EntryType>(turn % 5);
            spec.indptr_bytes = std::array<std::uint8_t, 3>{0, 4, 8}[turn % 3];
            spec.columns = std::array<std::uint8_t, 3>{1, 4, 32}[turn / 2 % 3];
            spec.lanes = std::max(spec.columns, std::array<std::uint8_t, 4>{32, 8, 1, 16}[turn / 2 % 4]);
            spec.unroll = static_cast<std::uint8_t>((spec.kernel == Kernel::gather_bits || has_gradient ? 4 : 8) /
                                                    (wide && !homogeneous ? 2 : 1));
            spec.in_shared_memory = turn / 2 % 2 == 0 && sums != Sums::fixed;
            spec.transpose = turn / 2 % 2 == 0;
            ++turn;
            list.push_back(spec);
          }
  return list;
}

// Every distribution with every kind of value and sum. The types are assigned cyclically.
std::vector<KernelSpec> jit_specs() {
  std::vector<KernelSpec> list;
  int turn = 0;
  for (const event::Distribution distribution :
       {event::Distribution::constant, event::Distribution::uniform, event::Distribution::normal})
    for (const event::Values values : {event::Values::event, event::Values::graded, event::Values::number})
      for (const Sums sums : {Sums::counts, Sums::floats, Sums::fixed})
        for (const bool transpose : {false, true}) {
          const bool homogeneous = distribution == event::Distribution::constant;
          if (transpose && (sums == Sums::counts) != (homogeneous && values == event::Values::event)) continue;
          if (!transpose && sums != Sums::floats) continue;
          list.push_back({.kernel = transpose ? Kernel::jit_scatter : Kernel::jit_gather,
                          .weight = static_cast<DType>(turn % 4),
                          .entry = event::entry_type(static_cast<DType>(turn / 2 % 4)),
                          .values = values,
                          .homogeneous = homogeneous,
                          .sums = sums,
                          .lanes = std::array<std::uint8_t, 3>{32, 1, 8}[turn % 3],
                          .columns = std::array<std::uint8_t, 2>{1, 4}[turn / 3 % 2],
                          .transpose = transpose,
                          .distribution = distribution});
          ++turn;
        }
  return list;
}

std::vector<KernelSpec> linear_specs() {
  std::vector<KernelSpec> list;
  for (const DType weight : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const event::EntryType entry : {event::EntryType::boolean, event::EntryType::f32, event::EntryType::f64})
      for (const event::Values values : {event::Values::event, event::Values::graded})
        list.push_back({.kernel = Kernel::linear,
                        .weight = weight,
                        .entry = entry,
                        .values = values,
                        .packed = entry == event::EntryType::boolean && values == event::Values::event});
  return list;
}

std::vector<KernelSpec> check_specs() {
  std::vector<KernelSpec> list;
  for (const std::uint8_t indptr_bytes : {0, 4, 8})
    for (const bool wide : {false, true}) list.push_back(event::check_of(indptr_bytes, wide));
  return list;
}

// Products with delays, stored and drawn: every kind of delay with every kind of sum. The types are assigned
// cyclically.
std::vector<KernelSpec> delayed_specs() {
  std::vector<KernelSpec> list;
  int turn = 0;
  for (const event::Delays delays :
       {event::Delays::one, event::Delays::bytes, event::Delays::words, event::Delays::drawn})
    for (const Sums sums : {Sums::counts, Sums::floats, Sums::fixed})
      for (const bool homogeneous : {false, true})
        for (const bool transpose : {false, true}) {
          if (sums == Sums::counts && !homogeneous) continue;
          const bool drawn = delays == event::Delays::drawn;
          const event::Values values = sums == Sums::counts  ? event::Values::event
                                       : sums == Sums::fixed ? event::Values::graded
                                                             : static_cast<event::Values>(turn % 3);
          KernelSpec spec{.kernel = drawn ? (transpose ? Kernel::jit_scatter : Kernel::jit_gather)
                                          : (transpose ? Kernel::scatter : Kernel::deliver),
                          .weight = static_cast<DType>(turn % 4),
                          .entry = event::entry_type(static_cast<DType>(turn / 2 % 4)),
                          .values = values,
                          .homogeneous = homogeneous,
                          .indptr_bytes = std::array<std::uint8_t, 3>{0, 4, 8}[turn % 3],
                          .sums = sums,
                          .lanes = std::array<std::uint8_t, 3>{32, 1, 8}[turn % 3],
                          .unroll = static_cast<std::uint8_t>(sums == Sums::fixed && !transpose ? 1
                                                              : turn % 4 == 3 && !homogeneous   ? 4
                                                                                                : 8),
                          .transpose = transpose,
                          .delays = delays};
          if (drawn) spec.distribution = homogeneous ? event::Distribution::constant : event::Distribution::normal;
          list.push_back(spec);
          if (delays == event::Delays::one && sums != Sums::floats) {
            spec.kernel = Kernel::finish;
            list.push_back(spec);
          }
          ++turn;
        }
  for (const DType type : {DType::f32, DType::f64}) list.push_back(event::take_of(type));
  for (const event::Delays delays : {event::Delays::bytes, event::Delays::words})
    list.push_back(event::check_of(8, false, delays));
  return list;
}

// Every part of a rule that has all parts. The types are assigned cyclically.
std::vector<jit::KernelSource> plastic_sources() {
  const graph::Synapse rule = graph::parse_synapse(
      "synapse all(w, c; p, q; k, tau; m, n) { on pre { c' = c + k * q; p' = p + exp(k); send where(w > c, w, m) }; "
      "on post { q' = q * (1 - k); w' = clamp(w + p, 0, 1) }; on n { w' = w + n * c }; each step { w' = w * k }; "
      "decay c by tau to k; decay q by 2 }");
  std::vector<jit::KernelSource> list;
  int turn = 0;
  for (int part = 0; part <= static_cast<int>(event::PlasticPart::refresh); ++part)
    for (int twice = 0; twice < 2; ++twice)
      list.push_back(
          print_source(rule, static_cast<event::PlasticPart>(part), /*signal=*/1, static_cast<DType>(turn++ % 4)));
  return list;
}

void check_arch(const std::string& arch, Share share) {
  const std::vector<KernelSpec> specs = all_specs();
  REQUIRE(specs.size() > 40);
  for (const std::vector<KernelSpec>& list : {specs, jit_specs(), linear_specs(), check_specs(), delayed_specs()})
    for (std::size_t i = share.first; i < list.size(); i += share.every)
      check_compiles(arch, print_source(list[i]), allowed_spill(list[i]));
  const std::vector<jit::KernelSource> plastic = plastic_sources();
  for (std::size_t i = share.first % plastic.size(); i < plastic.size(); i += share.every)
    check_compiles(arch, plastic[i], spilled_by_plasticity);
}

void check_drawn_numbers(const std::string& arch, NumberType type) {
  check_compiles(arch, print_source(event::spec_of(ConnectStep::numbers, type)), 0);
}

}  // namespace

TEST_CASE("a sample of the kernels of sparse products compiles for sm_90") { check_arch("sm_90", {0, 6}); }
TEST_CASE("some kernels of sparse products compile for sm_80") { check_arch("sm_80", {2, 24}); }
TEST_CASE("some kernels of sparse products compile for sm_100") { check_arch("sm_100", {3, 24}); }
TEST_CASE("some kernels of sparse products compile for sm_120") { check_arch("sm_120", {5, 24}); }

// The oldest and the newest architecture.
TEST_CASE("kernels of sparse products compile for sm_80, and spill little", "[long]") { check_arch("sm_80", {}); }
TEST_CASE("kernels of sparse products compile for sm_120, and spill little", "[long]") { check_arch("sm_120", {}); }

TEST_CASE("a pack has the kernels of a product for any number of multiprocessors") {
  for (const event::Values values : {event::Values::event, event::Values::number})
    for (const bool transpose : {false, true})
      for (const auto& [n, delays] : std::vector<std::pair<std::int64_t, event::Delays>>{
               {1, event::Delays::none}, {5, event::Delays::none}, {1, event::Delays::bytes}}) {
        const event::Product product{.weight = DType::f32,
                                     .entry = event::EntryType::f32,
                                     .values = values,
                                     .indptr_bytes = 4,
                                     .transpose = transpose,
                                     .rows = 1000,
                                     .cols = 9000,
                                     .nnz = 5'000'000,
                                     .n = n,
                                     .delays = delays,
                                     .ring = 90'000};
        const std::vector<KernelSpec> packed = kernels_of(product, {9, 0, 132});
        for (const int multiprocessors : {16, 56, 132, 1000}) {
          const jit::Device device{9, 0, multiprocessors};
          const std::vector<event::Step> steps = transpose || delays != event::Delays::none
                                                     ? std::vector{plan_delivery(product, device).scatter}
                                                     : plan_gather(product, device).steps;
          CHECK(packed.size() == steps.size());
          for (const event::Step& step : steps)
            CHECK(std::find(packed.begin(), packed.end(), step.spec) != packed.end());
        }
      }
}

TEST_CASE("few rows are spread over all multiprocessors, and fill their blocks where there are many batches") {
  event::Product product{.weight = DType::f32,
                         .entry = event::EntryType::f32,
                         .values = event::Values::event,
                         .indptr_bytes = 4,
                         .rows = 1000,
                         .cols = 1000,
                         .nnz = 100'000};
  const jit::Device device{9, 0, 132};
  const auto busy_warps = [&] {
    const event::Step step = plan_gather(product, device).steps.back();
    return static_cast<double>(product.rows * step.spec.lanes) / static_cast<double>(32 * step.blocks);
  };
  CHECK(busy_warps() <= 1);
  product.batches = 1000;
  CHECK(busy_warps() > 12);  // of 16 warps
}

// All threads of the process share a kernel and its limit of shared memory.
TEST_CASE("kernels of sparse products are allowed as much shared memory, whatever the matrix") {
  for (const jit::Device& device : {jit::Device{8, 6, 84}, jit::Device{9, 0, 132}})
    for (const DType weight : {DType::f32, DType::f64}) {
      std::vector<event::Step> steps;
      for (const std::int64_t cols : {100, 5'000, 10'000}) {
        const event::Product product{.weight = weight,
                                     .entry = event::EntryType::f32,
                                     .values = event::Values::event,
                                     .indptr_bytes = 4,
                                     .rows = 100,
                                     .cols = cols,
                                     .nnz = 10'000};
        steps.push_back(plan_scatter(product, device).scatter);
        CHECK(steps.back().spec == steps.front().spec);
        CHECK(steps.back().shared_bytes == cols * static_cast<std::int64_t>(size_of(weight)));
        CHECK(steps.back().shared_bytes <= steps.back().most_shared_bytes);
        CHECK(steps.back().most_shared_bytes == steps.front().most_shared_bytes);
      }
    }
}

TEST_CASE("kernels that draw networks compile for sm_90, and spill nothing") {
  for (int step = 0; step < static_cast<int>(ConnectStep::numbers); ++step)
    check_compiles("sm_90", print_source(event::spec_of(static_cast<ConnectStep>(step), NumberType::f32)), 0);
  for (int type = 0; type <= static_cast<int>(NumberType::i32); ++type)
    check_drawn_numbers("sm_90", static_cast<NumberType>(type));
}

TEST_CASE("kernels that draw networks compile for sm_80, sm_100 and sm_120") {
  for (const char* const arch : {"sm_80", "sm_100", "sm_120"}) {
    check_compiles(arch, print_source(event::spec_of(ConnectStep::draw, NumberType::f32)), 0);
    check_drawn_numbers(arch, NumberType::f16);
  }
}

}  // namespace spikeforge::tests
