// Recurrent layers on a GPU: which layers have a kernel on which device, that it fits the device, and that it compiles.
#include "csrc/kernels/recurrent/schedule.h"
#include "csrc/kernels/recurrent/spec.h"
#include "csrc/kernels/shared_bytes.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/compiles.h"
#include "tests/kernels/traced_call.h"

namespace spikeforge::tests {
namespace {

using namespace kernels;

constexpr const char* lif =
    "neuron lif(x; v; tau, v_threshold) { h = v + (x - v) / tau; s = spike(h - v_threshold, atan(2)); return s; "
    "v' = select(s, 0, h) }";
constexpr const char* adapting =
    "neuron adaptive(x; v, a; decay, beta) { h = decay * v + x; s = spike(h - 1 - beta * a, sigmoid(4)); return s; "
    "v' = h - s; a' = 0.9 * a + s }";
constexpr const char* two_inputs =
    "neuron two(x, y; v, i) { j = 0.8 * i + x; h = 0.9 * v + j * y; s = spike(h - 1, atan(2)); return s, h; "
    "v' = select(s, 0, h); i' = j }";
constexpr const char* graded = "neuron graded(x; v) { h = 0.9 * v + x; return tanh(h); v' = h }";

const jit::Device h200{9, 0, 132};

struct Options {
  std::int64_t delay = 1;
  bool lengths = false, starts = false;
};

struct Layer : TracedCall<RecurrentForwardLaunch, RecurrentBackwardLaunch> {
  Layer(const char* text, DType type, std::int64_t width, std::int64_t batch, const Options& options = {})
      : TracedCall(text, type, /*steps=*/100, width * batch, width) {
    for (Launch* const launch : {static_cast<Launch*>(&forward), static_cast<Launch*>(&backward)}) {
      if (options.lengths) launch->lengths = {{width, batch}, static_cast<const std::int32_t*>(somewhere())};
      if (options.starts) launch->start = {{width, batch}, static_cast<const unsigned char*>(somewhere()), batch};
    }
    forward.current = somewhere();
    forward.recurrence =
        backward.recurrence = {.batch = batch, .width = width, .delay = options.delay, .w = somewhere()};
  }
};

template <class AnyLaunch>
std::optional<RecurrentSchedule> schedule_on(const AnyLaunch& launch, const jit::Device& device) {
  return schedule_of(launch, device, [&](int blocks, int bytes) { return usual_clusters(device, blocks, bytes); });
}

struct Case {
  const char* text;
  DType type;
  std::int64_t width, batch;
  Options options = {};
};

// In the widest layers of a schedule, weights take 128 of the 255 registers of a thread, or 192 in float32. The spills
// are then before the loop over the steps: addresses of weights, which are all loaded at once. In single blocks, which
// are twice as wide as those of clusters, sm_120 spills 48 values and sm_80 seven; sm_90 spills up to 62 values per
// lane, instead of recomputing them in every step.
int most_spilled(const Case& c, const jit::Device& device) {
  if (c.type == DType::f32) return c.width > 256 ? 320 : 64;
  if (c.width <= 128) return 0;
  if (device.major == 9 || device.major == 12) return 520;
  return c.width > 768 ? 240 : 160;
}

// Compiles the forward and the backward kernel of a layer. Does nothing if the layer has no kernel.
void check_layer(const Case& c, const jit::Device& device) {
  const Layer layer(c.text, c.type, c.width, c.batch, c.options);
  INFO(layer.cell->name << ", type " << static_cast<int>(c.type) << ", H = " << c.width << ", B = " << c.batch);
  const std::string arch = jit::name_of_arch(device);
  if (const auto schedule = schedule_on(layer.forward, device)) {
    CHECK(schedule->geometry.forward_bytes() <= most_shared_bytes(device));
    check_compiles(arch, print_source(spec_of(layer.forward, schedule->geometry)), most_spilled(c, device));
  }
  if (const auto schedule = schedule_on(layer.backward, device)) {
    CHECK(schedule->geometry.backward_bytes() <= most_shared_bytes(device));
    check_compiles(arch, print_source(spec_of(layer.backward, schedule->geometry)), most_spilled(c, device));
  }
}

// Every width with every type. Neurons and batch sizes are assigned cyclically.
void check_all(const jit::Device& device) {
  constexpr std::array texts = {lif, adapting, two_inputs, graded};
  std::size_t turn = 0;
  for (const DType type : {DType::f16, DType::bf16, DType::f32})
    for (const std::int64_t width : {30, 128, 256, 512, 1024}) {
      check_layer({lif, type, width, turn % 2 == 0 ? 64 : 256}, device);
      check_layer({texts[1 + turn++ % 3], type, width, 64}, device);
      if (width == 128 || width == 512)
        check_layer({lif, type, width, 64, {.delay = 3, .lengths = true, .starts = true}}, device);
    }
}

int blocks_of(const Layer& layer, const jit::Device& device) {
  const auto schedule = schedule_on(layer.forward, device);
  return schedule ? schedule->geometry.blocks : 0;
}

}  // namespace

TEST_CASE("a layer has a block to itself, a cluster where there are clusters, or no kernel") {
  const jit::Device a100{8, 0, 108};
  CHECK(blocks_of(Layer(lif, DType::f16, 128, 64), h200) == 1);
  CHECK(blocks_of(Layer(lif, DType::f16, 512, 64), h200) == 8);
  CHECK(blocks_of(Layer(lif, DType::f16, 1024, 64), h200) == 16);
  CHECK(blocks_of(Layer(lif, DType::f16, 1025, 64), h200) == 0);
  CHECK(blocks_of(Layer(lif, DType::f16, 256, 64), a100) == 1);
  CHECK(blocks_of(Layer(lif, DType::f16, 257, 64), a100) == 0);
  CHECK(blocks_of(Layer(lif, DType::f64, 128, 64), h200) == 0);
  CHECK(blocks_of(Layer(lif, DType::f16, 128, 64), {7, 5, 40}) == 0);
  CHECK(blocks_of(Layer(lif, DType::f16, 128, 64, {.delay = 20}), h200) == 1);
  CHECK(blocks_of(Layer(lif, DType::f16, 512, 64, {.delay = 20}), h200) == 8);
  CHECK(blocks_of(Layer(lif, DType::f16, 128, 64, {.delay = 65}), h200) == 0);
  CHECK(blocks_of(Layer(lif, DType::f16, 128, 64, {.lengths = true, .starts = true}), h200) == 1);
  Layer by_sample(lif, DType::f16, 128, 64);
  by_sample.params[0].count = 64 * 128;
  CHECK(blocks_of(by_sample, h200) == 0);
}

TEST_CASE("usual recurrent layers compile for sm_90") {
  for (const std::int64_t width : {128, 512}) check_layer({lif, DType::f16, width, 64}, h200);
}

TEST_CASE("recurrent layers of samples, and with a delay, compile for sm_90") {
  check_layer({lif, DType::f16, 128, 64, {.lengths = true}}, h200);
  check_layer({adapting, DType::f16, 128, 64, {.delay = 2, .starts = true}}, h200);
  check_layer({lif, DType::f16, 512, 64, {.delay = 3, .lengths = true, .starts = true}}, h200);
}

TEST_CASE("recurrent layers compile for sm_80 and spill little", "[long]") { check_all({8, 0, 108}); }
TEST_CASE("recurrent layers compile for sm_90 and spill little", "[long]") { check_all(h200); }
TEST_CASE("recurrent layers compile for sm_100 and spill little", "[long]") { check_all({10, 0, 148}); }
TEST_CASE("recurrent layers compile for sm_120 and spill little", "[long]") { check_all({12, 0, 188}); }

}  // namespace spikeforge::tests
