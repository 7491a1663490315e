#include "csrc/graph/layer.h"
#include "csrc/base/somewhere.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/frames/frames.h"
#include "csrc/kernels/layer/batch_norm.h"
#include "csrc/kernels/layer/delayed_product.h"
#include "csrc/kernels/layer/pooling.h"
#include "csrc/kernels/layer/spike_bits.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/compiles.h"

namespace spikeforge::tests {
namespace {

using namespace layers;

// The most common kernels, or all of them. The types are assigned cyclically.
std::vector<jit::KernelSource> sources(bool usual) {
  constexpr std::array types = {DType::f16, DType::bf16, DType::f32, DType::f64};
  constexpr Window two{2, 2, 0, 1}, three{3, 2, 1, 1}, overlapping{3, 1, 1, 1}, seven{7, 2, 3, 1}, large{15, 15, 0, 1};
  const void* const somewhere = reinterpret_cast<const void*>(std::uintptr_t{256});
  std::vector<jit::KernelSource> list;
  std::size_t turn = 0;
  for (const Window& window : {two, three, overlapping, seven, large})
    for (const std::int64_t channels : {1, 2, 64})
      for (const bool is_mean : {false, true}) {
        if (usual && (channels == 2 || is_mean || window.size > 3)) continue;
        const DType type = usual ? DType::f16 : types[turn++ % types.size()];
        for (const PoolPass pass : {PoolPass::forward, PoolPass::backward})
          for (const bool is_normalised : {false, true}) {
            if (is_mean && is_normalised) continue;
            const void* const given = is_normalised ? somewhere : nullptr;
            list.push_back(source_of(PoolLaunch{
                .pool = {.down = window, .across = window, .is_mean = is_mean},
                .images =
                    {.count = 64, .height = 112, .width = 112, .channels = channels, .out_height = 56, .out_width = 56},
                .type = type,
                .pass = pass,
                .normalised = {.weight = given, .x = given}}));
          }
      }
  for (const DType type : types)
    for (const int bits : {1, 4})
      for (const std::uintptr_t address : {0, 8})
        for (const BitsPass pass : {BitsPass::pack, BitsPass::unpack})
          if (!usual || type == DType::f16)
            list.push_back(source_of(BitsLaunch{.pass = pass,
                                                .type = type,
                                                .bits = bits,
                                                .count = 1000,
                                                .from = reinterpret_cast<const void*>(address),
                                                .to = reinterpret_cast<void*>(address)}));
  for (const auto values : {frames::Values::count, frames::Values::binary, frames::Values::bits, frames::Values::voxel,
                            frames::Values::surface})
    for (const DType type : {DType::f32, DType::f64}) {
      if (usual && values != frames::Values::count) continue;
      using enum frames::Column;
      for (jit::KernelSource& source :
           sources_of(frames::FramesLaunch{.values = values,
           .columns = type == DType::f32 ? frames::Columns{i64, i16, i16, u8} : frames::Columns{i32, u16, u32, i8},
           .type = type,
           .arguments = {}}))
        list.push_back(std::move(source));
    }
  return list;
}

void check_all(const std::string& arch, bool usual) {
  for (const jit::KernelSource& source : sources(usual)) check_compiles(arch, source, /*most_spilled=*/0);
}

// A filter with this number of taps.
void check_delayed(const std::string& arch, int first, int last) {
  for (const DelayedPass pass : {DelayedPass::add, DelayedPass::sums})
    for (const DType type : {DType::f32, DType::f64})
      for (int taps = first; taps <= last; ++taps)
        check_compiles(arch, source_of(DelayedKernel{.pass = pass, .type = type, .taps = taps}), /*most_spilled=*/0);
}

constexpr const char* leaky =
    "neuron leaky(x; v) { h = v + (x - v) / 2; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }";
constexpr const char* adaptive =
    "neuron adaptive(x; v, w; tau, a) { h = v + (x - v - w) / tau; s = spike(h - 1, sigmoid(4)); return s;"
    " v' = h - s; w' = a * w + 0.1 * s }";

constexpr const char* filters =
    "neuron filters(x; a, b, c, d, e) { p = 0.5 * a + x; q = 0.5 * b + p; r = 0.5 * c + q; s = 0.5 * d + r;"
    " t = 0.5 * e + s; return t; a' = p; b' = q; c' = r; d' = s; e' = t }";

// A neuron with batch normalisation over images, with one launch per direction.
class Normalised {
 public:
  Normalised(const char* neuron, std::optional<graph::Residual> residual, DType type, std::int64_t steps,
             std::int64_t channels, std::int64_t side, bool channels_last)
      : type_(type), steps_(steps), neurons_(32 * channels * side * side) {
    const graph::Cell cell = intern(neuron)->graph;
    const auto around = [&](bool with_statistics) {
      return intern(graph::print(
          graph::layer(cell, {.normalised = true, .with_statistics = with_statistics, .residual = residual})));
    };
    first_ = around(false);
    second_ = around(true);
    const std::int64_t inner = channels_last ? 1 : side * side;
    const ParamView of_channels{.data = somewhere(), .type = compute_type(type), .inner = inner, .count = channels};
    params_.assign(second_->params.size(), of_channels);
    inputs_.assign(first_->inputs.size(), {.data = somewhere(), .time_stride = neurons_, .neuron_stride = 1});
    initial_.resize(first_->states.size());
    none_.resize(most_lists);
    given_.assign(most_lists, somewhere());
    upstream_.resize(most_lists);
    for (std::size_t i = 0; i < first_->outputs.size(); ++i) upstream_[i] = inputs_[0];
  }

  std::vector<jit::KernelSource> sources() const {
    std::vector<jit::KernelSource> list;
    ForwardLaunch run;
    describe(run, *first_);
    run.outputs = std::span(given_).first(first_->outputs.size());
    run.states = std::span(given_).first(first_->states.size());
    run.checkpoints = somewhere();
    if (type_ != DType::bf16)  // four bits for sums, one bit for spikes
      run.packed = {.bits = static_cast<std::uint8_t>(first_->inputs.size() > 1 ? 4 : 1), .numbers = {}, .valid = {}};
    const BatchNormForward forward{.run = run};
    REQUIRE(fits_one_launch(forward, device));
    list.push_back(source_of(forward, device));

    // Only the neuron's own parameters have gradients here; the layer adds its own.
    std::vector<void*> of_params(first_->params.size());
    for (std::size_t j = 0; j + 3 < of_params.size(); ++j) of_params[j] = somewhere();
    BackwardLaunch sums, gradient;
    describe(sums, *first_);
    describe(gradient, *second_);
    sums.grad_params = of_params;
    sums.grad_inputs = std::span(none_).first(first_->inputs.size());
    sums.any_grad_param = true;
    std::vector<void*> of_inputs(second_->inputs.size());
    of_inputs[0] = somewhere();
    gradient.grad_inputs = of_inputs;
    gradient.grad_params = std::span(none_).first(second_->params.size());
    gradient.any_grad_input = true;
    for (BackwardLaunch* launch : {&sums, &gradient}) {
      launch->grad_outputs = std::span(upstream_).first(launch->cell->outputs.size());
      launch->grad_states = std::span(upstream_).last(launch->cell->states.size());
      launch->grad_initial = std::span(none_).first(launch->cell->states.size());
      launch->checkpoints = somewhere();
    }
    const BatchNormBackward backward{.sums = sums, .gradient = gradient};
    REQUIRE(fits_one_launch(backward, device));
    list.push_back(source_of(backward, device));
    return list;
  }

 private:
  static constexpr std::size_t most_lists = 16;
  static constexpr jit::Device device{.major = 9, .minor = 0, .multiprocessors = 132};

  void describe(Launch& launch, const TracedCell& cell) const {
    launch.cell = &cell;
    launch.type = type_;
    launch.steps = steps_;
    launch.neurons = neurons_;
    launch.checkpoint_length = cell.checkpoint_length(type_);
    launch.inputs = inputs_;
    launch.initial = initial_;
    launch.params = std::span(params_).first(cell.params.size());
  }

  const DType type_;
  const std::int64_t steps_, neurons_;
  std::shared_ptr<const TracedCell> first_, second_;
  std::vector<SequenceView> inputs_, upstream_;
  std::vector<StateView> initial_;
  std::vector<ParamView> params_;
  std::vector<void*> none_, given_;
};

// The offset of a channel is spilled before the first pass of a ring, and loaded after it.
constexpr int spilled_meanwhile = 16;

void check_normalised(const std::string& arch, const Normalised& layer, int most_spilled) {
  for (const jit::KernelSource& source : layer.sources()) check_compiles(arch, source, most_spilled);
}

// For 7 x 7 images in plain layout a thread has one neuron, otherwise up to four, in one or several channels. Tests the
// combinations of neuron, number of steps, layout and size whose indices have a sum of this parity, so that any three
// options occur together. The types are assigned cyclically.
void check_normalised(const std::string& arch, int parity) {
  // The kernel contains two loops. The first bound is for segments, the last of which is shorter, on sm_80 (64 bytes on
  // sm_90 and sm_120); the second for a neuron with two states and two learned parameters.
  constexpr int spilled_by_segments = 152, spilled_by_two_states = 40;
  constexpr std::array types = {DType::f16, DType::bf16, DType::f32};
  std::size_t turn = 0;
  for (const bool adapts : {false, true})
    for (const bool in_segments : {false, true})
      for (const bool channels_last : {true, false})
        for (const bool is_small : {true, false}) {
          if ((adapts + in_segments + channels_last + is_small) % 2 != parity) continue;
          const auto residual = channels_last ? std::optional(graph::Residual::add) : std::nullopt;
          const DType type = types[turn++ % types.size()];
          check_normalised(arch,
                           Normalised(adapts ? adaptive : leaky, residual, type, in_segments ? 20 : 4, 256,
                                      is_small ? 7 : 14, channels_last),
                           in_segments ? spilled_by_segments
                           : adapts    ? spilled_by_two_states
                                       : spilled_meanwhile);
        }
}

}  // namespace

TEST_CASE("normalisation and neuron in one launch compile for sm_90 without spills in their loops") {
  check_normalised("sm_90", Normalised(leaky, graph::Residual::add, DType::f16, 4, 256, 14, true), spilled_meanwhile);
  check_normalised("sm_90", Normalised(leaky, std::nullopt, DType::f16, 4, 256, 7, false), spilled_meanwhile);
  for (const DType type : {DType::f16, DType::f32})
    for (const bool channels_last : {true, false})
      check_normalised("sm_90", Normalised(leaky, graph::Residual::membrane, type, 4, 256, 14, channels_last),
                       spilled_meanwhile);
}
TEST_CASE("normalisation and a neuron of many states over few steps compile without spills") {
  for (const std::int64_t steps : {1, 2})
    for (const DType type : {DType::f16, DType::f32})
      check_normalised("sm_90", Normalised(filters, std::nullopt, type, steps, 64, 14, true), 0);
}
TEST_CASE("normalisation and neuron over many steps in one launch compile without spills") {
  check_normalised("sm_90", Normalised(leaky, std::nullopt, DType::f16, 16, 128, 28, true), 0);
  check_normalised("sm_100", Normalised(leaky, std::nullopt, DType::f32, 16, 128, 28, false), 0);
}
TEST_CASE("any normalisation and neuron in one launch compile for sm_80 and spill little", "[long]") {
  check_normalised("sm_80", 0);
}
TEST_CASE("any normalisation and neuron in one launch compile for sm_90 and spill little", "[long]") {
  check_normalised("sm_90", 1);
}
TEST_CASE("any normalisation and neuron in one launch compile for sm_100 and spill little", "[long]") {
  check_normalised("sm_100", 0);
}
TEST_CASE("any normalisation and neuron in one launch compile for sm_120 and spill little", "[long]") {
  check_normalised("sm_120", 1);
}

TEST_CASE("usual kernels of pooling, bits and frames compile for sm_90 without spills") { check_all("sm_90", true); }

// The oldest and the newest architecture.
TEST_CASE("kernels of pooling, bits and frames compile for sm_80 without spills", "[long]") {
  check_all("sm_80", false);
}
TEST_CASE("kernels of pooling, bits and frames compile for sm_120 without spills", "[long]") {
  check_all("sm_120", false);
}

TEST_CASE("products with delays of two taps compile for sm_90 without spills") { check_delayed("sm_90", 2, 2); }
TEST_CASE("products with delays compile for sm_80 without spills", "[long]") {
  check_delayed("sm_80", 1, most_delayed_taps);
}
TEST_CASE("products with delays compile for sm_100 without spills", "[long]") {
  check_delayed("sm_100", 1, most_delayed_taps);
}
TEST_CASE("products with delays compile for sm_120 without spills", "[long]") {
  check_delayed("sm_120", 1, most_delayed_taps);
}

}  // namespace spikeforge::tests
