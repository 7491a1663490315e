// Conditions that must not change a bit: tiles, threads, vectors, layouts, and the other neurons.
#include "tests/ops/calls.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

constexpr int64_t n_tiled_steps = 19;  // with N = 8191 well above the work from which a call is cut into tiles

// Results and gradients of a call whose x, first parameter and states are differentiable.
Tensors all_of(Call call) {
  call.x.requires_grad_(true);
  const Tensors results = run(call);
  Tensors upstream;
  for (const Tensor& result : results)
    upstream.push_back(noise(result.sizes(), result.scalar_type(), unsigned(upstream.size()) + 7));
  const NamedGradients named = gradients(call, results, upstream);
  Tensors all;
  for (const Tensor& t : results) all.push_back(t.detach());
  all.insert(all.end(), named.values.begin(), named.values.end());
  return all;
}

// The parameter that every neuron's time constant comes from, one number a neuron, so that cells differ from lane to
// lane.
Call with_parameter_a_neuron(const std::string& neuron, const Tensor& x) {
  Call call = default_call(neuron, x);
  const auto shape = x.sizes().slice(1);
  const std::string name = neuron == "integrate_and_fire" ? "v_threshold" : neuron == "plif" ? "w" : "tau";
  const Tensor tau = noise(shape, x.scalar_type(), 11)
                         .mul(.3)
                         .add(neuron == "plif"                 ? 0
                              : neuron == "integrate_and_fire" ? 1
                                                               : 2.5);
  call.params.insert_or_assign(name, Param(leaf(tau)));
  call.v = leaf(noise(shape, x.scalar_type(), 13));
  if (neuron == "izhikevich" || neuron == "adaptive_lif") call.w = leaf(noise(shape, x.scalar_type(), 17));
  return call;
}

void require_same(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("tensor " << i);
    REQUIRE(a[i].sizes() == b[i].sizes());
    REQUIRE(a[i].equal(b[i]));
  }
}

Tensor channels_last(const Tensor& t) {  // [..., C, H, W] with C fastest
  return t.movedim(-3, -1).contiguous().movedim(-1, -3);
}

}  // namespace

TEST_CASE("one thread and two give the same bits, whatever the number of neurons") {
  for (const NeuronRow& neuron : neuron_rows) {
    for (const int64_t size : {1, 7, 64, 8191, 20011}) {
      INFO(neuron.name << ", N=" << size);
      const auto call = [&] { return with_parameter_a_neuron(neuron.name, drive(neuron.name, {n_tiled_steps, size})); };
      Tensors one, two, three;
      {
        const ThreadCount threads(1);
        one = all_of(call());
      }
      {
        const ThreadCount threads(2);
        two = all_of(call());
      }
      {
        const ThreadCount threads(3);  // another size of tiles
        three = all_of(call());
      }
      require_same(one, two);
      require_same(one, three);
    }
  }
}

TEST_CASE(
    "the gradient of a number that all neurons share has the same bits from run to run and from thread to thread") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    Tensors seen;
    for (const int n : {1, 2, 2, 3}) {
      const ThreadCount threads(n);
      const Call call{
          .neuron = "plif", .x = drive("plif", {6, 20011}, type), .params = {{"w", leaf(at::zeros({}, type))}}};
      seen.push_back(all_of(call).back());
    }
    REQUIRE(seen[0].item<double>() != 0);
    for (const Tensor& other : seen) REQUIRE(seen[0].equal(other));
  }
}

// Neurons next to the ends of tiles and vectors, alone in scalar calls of one lane.
TEST_CASE("the results of a neuron depend on no other neuron") {
  constexpr int64_t size = 20011;
  for (const NeuronRow& neuron : neuron_rows) {
    const Tensor x = drive(neuron.name, {n_tiled_steps, size});
    const Call all = with_parameter_a_neuron(neuron.name, x);
    const Tensors results = run(all);
    for (const int64_t i : {0, 1, 15, 16, 2047, 2048, 8191, 8192, 16383, 16384, 20007, 20010}) {
      INFO(neuron.name << ", neuron " << i);
      Call alone = default_call(neuron.name, x.slice(1, i, i + 1));
      for (const auto& [name, param] : all.params)
        alone.params.insert_or_assign(name, Param(param.tensor().slice(0, i, i + 1)));
      alone.v = all.v->slice(0, i, i + 1);
      if (all.w) alone.w = all.w->slice(0, i, i + 1);
      const Tensors result = run(alone);
      REQUIRE(result[0].equal(results[0].slice(1, i, i + 1)));
      for (std::size_t s = 1; s < results.size(); ++s) REQUIRE(result[s].equal(results[s].slice(0, i, i + 1)));
    }
  }
}

// Large results are written past the caches, in whole lines, however the rows lie.
TEST_CASE("a large call gives the bits of small ones, whatever the alignment of its rows") {
  constexpr int64_t steps = 18, piece = 10007, bytes = 9 << 20;
  for (const std::string neuron : {"lif", "izhikevich"}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      if (neuron == "izhikevich" && type != at::kFloat) continue;
      const int64_t aligned = bytes / steps / int64_t(at::elementSize(type)) / 64 * 64;
      for (const int64_t size : {aligned, aligned + 3}) {
        INFO(neuron << ", " << type << ", N=" << size);
        // With states as sequences: results, then the gradient of x.
        const auto all_of_part = [&](int64_t begin, int64_t end) {
          Call call = default_call(neuron, drive(neuron, {steps, size}, type).slice(1, begin, end).contiguous());
          call.store_v = true;
          call.x.requires_grad_(true);
          Tensors all = run(call), upstream;
          for (const Tensor& result : all)
            upstream.push_back(
                noise({steps, size}, result.scalar_type(), unsigned(upstream.size()) + 7).slice(1, begin, end));
          all.push_back(gradients(call, all, upstream).values[0]);
          return all;
        };
        const Tensors whole = all_of_part(0, size);
        for (const int64_t begin : {size / 2 - 1, size - piece}) {
          INFO("from neuron " << begin);
          Tensors expected;
          for (const Tensor& t : whole) expected.push_back(t.slice(1, begin, begin + piece));
          require_same(all_of_part(begin, begin + piece), expected);
        }
      }
    }
  }
}

TEST_CASE("a channels-last x gives the same bits, in its own layout, forward and backward") {
  for (const NeuronRow& neuron : neuron_rows) {
    for (const bool store_v : {false, true}) {
      INFO(neuron.name << (store_v ? ", store_v" : ""));
      Call call = default_call(neuron.name, drive(neuron.name, {n_tiled_steps, 3, 4, 5, 7}));
      const std::string name = call.params.contains("w") ? "w" : "v_threshold";  // plif has w
      call.params.insert_or_assign(name, Param(leaf(noise({4, 1, 1}).mul(.2).add(1))));
      call.v = leaf(noise({3, 4, 5, 7}));
      call.store_v = store_v;
      Call other = call;
      other.x = channels_last(call.x);
      REQUIRE_FALSE(other.x.is_contiguous());
      const Tensors expected = all_of(call), actual = all_of(other);
      REQUIRE(actual[0].strides() == other.x.strides());
      REQUIRE(actual[1].strides() == other.x.strides().slice(store_v ? 0 : 1));
      REQUIRE(actual.size() == expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i) {
        INFO("tensor " << i);
        if (i + 1 < actual.size()) {
          REQUIRE(actual[i].equal(expected[i]));
        } else {  // the parameter's: a sum over neurons in the order of their memory
          REQUIRE(actual[i].allclose(expected[i], 1e-5, 1e-5));
        }
      }
    }
  }
}

TEST_CASE("a gap between steps, odd strides and repeated steps give what a copy gives") {
  for (const NeuronRow& neuron : neuron_rows) {
    INFO(neuron.name);
    const std::pair<const char*, Tensor> views[] = {
        {"a gap", drive(neuron.name, {n_tiled_steps, 3, 37}).select(1, 1)},
        {"an odd gap", drive(neuron.name, {n_tiled_steps, 41}).slice(1, 1, 38)},
        {"every other neuron", drive(neuron.name, {n_tiled_steps, 74}).slice(1, 0, 74, 2)},
        {"batch first", drive(neuron.name, {37, n_tiled_steps}).transpose(0, 1)},
        {"one step, repeated", drive(neuron.name, {1, 37}).expand({n_tiled_steps, 37})},
        {"one neuron, repeated", drive(neuron.name, {n_tiled_steps, 1}).expand({n_tiled_steps, 37})},
    };
    for (const auto& [text, view] : views) {
      INFO(text);
      REQUIRE(view.sizes() == at::IntArrayRef({n_tiled_steps, 37}));
      const Tensors expected = all_of(with_parameter_a_neuron(neuron.name, view.contiguous()));
      const Tensor before = view.clone();
      require_same(all_of(with_parameter_a_neuron(neuron.name, view.detach())), expected);
      REQUIRE(view.equal(before));
    }
  }
}

TEST_CASE("an expanded gradient is read through its zero strides, to the same bits") {
  for (const NeuronRow& neuron : neuron_rows) {
    for (const bool store_v : {false, true}) {
      INFO(neuron.name << (store_v ? ", store_v" : ""));
      Call call = with_parameter_a_neuron(neuron.name, leaf(drive(neuron.name, {n_tiled_steps, 6, 5})));
      call.store_v = store_v;
      Tensors thin, dense;
      for (const Tensor& result : run(call)) {
        thin.push_back(at::full({}, .7, result.options()).expand(result.sizes()));
        dense.push_back(thin.back().contiguous());
      }
      require_same(gradients(call, run(call), thin).values, gradients(call, run(call), dense).values);
      // A row each step, as from a sum over neurons.
      const Tensor row = noise({n_tiled_steps, 1, 1}).expand({n_tiled_steps, 6, 5});
      thin[0] = row;
      dense[0] = row.contiguous();
      require_same(gradients(call, run(call), thin).values, gradients(call, run(call), dense).values);
    }
  }
}

TEST_CASE("the last states are the last of their sequences, and a sequence may be cut in two") {
  for (const NeuronRow& neuron : neuron_rows) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
      INFO(neuron.name << " " << at::toString(type));
      Call call = default_call(neuron.name, drive(neuron.name, {n_tiled_steps, 67}, type));
      const Tensors last = run(call);
      call.store_v = true;
      const Tensors sequences = run(call);
      REQUIRE(last[0].equal(sequences[0]));
      for (std::size_t s = 1; s < last.size(); ++s) REQUIRE(last[s].equal(sequences[s].select(0, n_tiled_steps - 1)));

      call.store_v = false;
      const Tensor x = call.x;
      call.x = x.slice(0, 0, 11);
      const Tensors first = run(call);
      call.x = x.slice(0, 11);
      call.v = first[1];
      if (first.size() == 3) call.w = first[2];
      const Tensors second = run(call);
      REQUIRE(at::cat({first[0], second[0]}).equal(last[0]));
      for (std::size_t s = 1; s < last.size(); ++s) REQUIRE(second[s].equal(last[s]));
    }
  }
}

}  // namespace spikeforge::test
