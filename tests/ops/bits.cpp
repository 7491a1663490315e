// Results must have the same bits for any tiles, threads, vectors and other neurons. Layouts are tested in
// tests/python/multistep/test_edges.py.
#include "tests/ops/calls.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

constexpr int64_t n_tiled_steps = 19;  // with N = 8191, enough work to be divided into tiles

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

// The parameter that determines the time constant of a neuron, with one value per neuron, so that the lanes of a vector
// differ.
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
        const ThreadCount threads(3);  // changes the size of tiles
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

// Neurons at the ends of tiles and vectors, compared with scalar calls of a single neuron.
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

// Large results are written with non-temporal stores of complete cache lines, for any alignment of the rows.
TEST_CASE("a large call gives the bits of small ones, whatever the alignment of its rows") {
  constexpr int64_t steps = 18, piece = 10007, bytes = 9 << 20;
  for (const std::string neuron : {"lif", "izhikevich"}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      if (neuron == "izhikevich" && type != at::kFloat) continue;
      const int64_t aligned = bytes / steps / int64_t(at::elementSize(type)) / 64 * 64;
      for (const int64_t size : {aligned, aligned + 3}) {
        INFO(neuron << ", " << type << ", N=" << size);
        // The results, with the states of all steps, followed by the gradient of x.
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
