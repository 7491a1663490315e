// Empty and very small inputs, for the sanitizers. Their results are tested in tests/python/multistep/test_edges.py.
#include "tests/ops/calls.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

constexpr at::ScalarType all_types[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};

at::ScalarType state_type(at::ScalarType x) { return x == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace

TEST_CASE("no neurons or no steps: empty results, and a gradient of zero for shared parameters") {
  for (const NeuronRow& neuron : neuron_rows) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{4, 0}, {4, 2, 0}, {4, 0, 3}, {0, 0}, {0, 3}}) {
      INFO(neuron.name);
      Call call = default_call(neuron.name, leaf(at::empty(shape, at::kFloat)));
      const Tensor v_threshold = leaf(at::ones({}));
      call.params.insert_or_assign("v_threshold", Param(v_threshold));
      const Tensors results = run(call);
      REQUIRE(results[0].sizes() == at::IntArrayRef(shape));
      REQUIRE(results[1].sizes() == at::IntArrayRef(shape).slice(1));
      const NamedGradients actual = gradients(call, results, {at::ones(shape), Tensor(), Tensor()});
      for (std::size_t i = 0; i < actual.names.size(); ++i) {
        if (actual.names[i] == "x") REQUIRE(actual.values[i].sizes() == at::IntArrayRef(shape));
        if (actual.names[i] == "v_threshold") REQUIRE(actual.values[i].item<float>() == 0);
      }
    }
  }
}

TEST_CASE("one neuron may have any shape of one element, none included") {
  for (const NeuronRow& neuron : neuron_rows) {
    const Tensor x = drive(neuron.name, {13});
    Tensors expected;
    for (const auto& shape : std::vector<std::vector<int64_t>>{{13}, {13, 1}, {13, 1, 1, 1}}) {
      INFO(neuron.name);
      const Call call = default_call(neuron.name, leaf(x.reshape(shape)));
      const Tensors results = run(call);
      REQUIRE(results[0].sizes() == at::IntArrayRef(shape));
      REQUIRE(results[1].sizes() == at::IntArrayRef(shape).slice(1));
      Tensors flat = {results[0].detach().flatten(), results[1].detach().flatten(),
                      gradients(call, results, {at::ones_like(results[0]), Tensor(), Tensor()}).values.at(0).flatten()};
      if (expected.empty()) expected = flat;
      REQUIRE(same_bits(flat, expected));
    }
  }
}

TEST_CASE("any number of steps and neurons, in every type and form, has finite results and gradients") {
  for (const NeuronKind kind : all_neurons) {
    const NeuronRow& neuron = neuron_row(kind);
    for (const at::ScalarType type : all_types) {
      for (const int64_t steps : {1, 2, 16, 17, 33}) {
        for (const int64_t size : {1, 7, 33}) {
          for (const Form& form : forms(kind)) {
            INFO(neuron.name << " (" << form.text() << ") T=" << steps << " N=" << size << " " << at::toString(type));
            Call call = default_call(neuron.name, leaf(drive(neuron.name, {steps, size}, type)));
            call.form = form;
            call.store_v = size == 7;
            const Tensors results = run(call);
            REQUIRE(results[0].scalar_type() == type);
            REQUIRE(results[0].isfinite().all().item<bool>());
            REQUIRE(results[1].scalar_type() == state_type(type));
            const Tensor gradient =
                gradients(call, results, {at::ones_like(results[0]), Tensor(), Tensor()}).values.at(0);
            REQUIRE(gradient.scalar_type() == type);
            REQUIRE(gradient.isfinite().all().item<bool>());
            REQUIRE(gradient.count_nonzero().item<int64_t>() > 0);
          }
        }
      }
    }
  }
}

// Other errors are tested in tests/python/multistep/test_errors.py; Python cannot pass an undefined tensor.
TEST_CASE("an undefined tensor is refused with the operator's and the argument's name") {
  const Tensor x = at::zeros({4, 3});
  CHECK_THROWS_WITH(run({.neuron = "lif", .x = x, .params = {{"tau", Tensor()}}}),
                    has_text("lif: tau is an undefined tensor"));
  CHECK_THROWS_WITH(spikeforge::plif(x, Tensor()), has_text("plif: w is an undefined tensor"));
  CHECK_THROWS_WITH(spikeforge::lif(Tensor()), has_text("lif: x is an undefined tensor"));
}

}  // namespace spikeforge::test
