// Empty and tiny inputs, inference, and what is refused.
#include "calls.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "catch.h"

namespace spikeforge::test {
namespace {

constexpr at::ScalarType all_types[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};

at::ScalarType state_type(at::ScalarType x) { return x == at::kDouble ? at::kDouble : at::kFloat; }

// Elements of the checkpoints that the forward operators returned, those within a scope.
class CheckpointSizes {
 public:
  CheckpointSizes() {
    current() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(nullptr, &ended).needsOutputs(true));
  }
  ~CheckpointSizes() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  CheckpointSizes(const CheckpointSizes&) = delete;
  CheckpointSizes& operator=(const CheckpointSizes&) = delete;

  const std::vector<int64_t>& seen() const { return seen_; }

 private:
  static CheckpointSizes*& current() {
    thread_local CheckpointSizes* current = nullptr;
    return current;
  }
  static void ended(const at::RecordFunction& function, at::ObserverContext*) {
    const std::string name = function.name();
    if (name.starts_with("spikeforge::") && name.ends_with("_forward"))
      current()->seen_.push_back(function.outputs().back().toTensor().numel());
  }

  at::CallbackHandle handle_{};
  std::vector<int64_t> seen_;
};

}  // namespace

TEST_CASE("no steps: no spikes, and a fresh copy of the state, whose gradient is the identity") {
  for (const NeuronFacts& neuron : neurons()) {
    for (const at::ScalarType type : all_types) {
      INFO(neuron.name << " " << at::toString(type));
      Call call = default_call(neuron.name, leaf(at::empty({0, 3, 5}, type)));
      call.v = leaf(noise({3, 5}, type));
      if (neuron.has_w) call.w = leaf(noise({3, 5}, type, 3));
      const Tensors results = run(call);
      REQUIRE(results[0].sizes() == at::IntArrayRef({0, 3, 5}));
      REQUIRE(results[0].scalar_type() == type);
      const Tensor states[] = {*call.v, neuron.has_w ? *call.w : Tensor()};
      Tensors upstream = {Tensor()};
      for (std::size_t s = 1; s < results.size(); ++s) {
        REQUIRE(results[s].scalar_type() == state_type(type));
        REQUIRE(results[s].equal(states[s - 1].to(state_type(type))));
        REQUIRE(results[s].const_data_ptr() != states[s - 1].const_data_ptr());
        upstream.push_back(noise({3, 5}, type, 5).to(state_type(type)));
      }
      const NamedGradients actual = gradients(call, results, upstream);
      int states_seen = 0;
      for (std::size_t i = 0; i < actual.names.size(); ++i) {
        if (!actual.names[i].starts_with("state ")) continue;
        ++states_seen;
        REQUIRE(actual.values[i].scalar_type() == type);
        REQUIRE(actual.values[i].equal(upstream[1].to(type)));
      }
      REQUIRE(states_seen == (neuron.has_w ? 2 : 1));

      call.store_v = true;
      for (const Tensor& sequence : run(call)) REQUIRE(sequence.sizes() == at::IntArrayRef({0, 3, 5}));
    }
  }
}

TEST_CASE("no steps from v_reset send the gradient there") {
  const Tensor v_reset = leaf(at::full({}, -.25, at::kDouble));
  const Call call{.neuron = "lif", .x = at::empty({0, 3, 5}, at::kDouble), .params = {{"v_reset", v_reset}}};
  const Tensors results = run(call);
  REQUIRE(results[1].equal(at::full({3, 5}, -.25, at::kDouble)));
  REQUIRE(gradients(call, results, {Tensor(), at::ones({3, 5}, at::kDouble)}).values.at(0).item<double>() == 15);
}

TEST_CASE("no neurons: empty results, and a gradient of zero for what they would share") {
  for (const NeuronFacts& neuron : neurons()) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{4, 0}, {4, 2, 0}, {4, 0, 3}, {0, 0}}) {
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
  for (const NeuronFacts& neuron : neurons()) {
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
  for (const NeuronFacts& neuron : neurons()) {
    for (const at::ScalarType type : all_types) {
      for (const int64_t steps : {1, 2, 16, 17, 33}) {
        for (const int64_t size : {1, 7, 33}) {
          for (const Form& form : forms(neuron)) {
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

TEST_CASE("exactly at the threshold a neuron fires; NaN does not; infinity is forgotten by a hard reset") {
  constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType type : all_types) {
    INFO(at::toString(type));
    const Tensor x = at::empty({1, 5}, at::kDouble);
    const double values[] = {1, .5, nan, infinity, -infinity};
    std::copy(std::begin(values), std::end(values), x.mutable_data_ptr<double>());
    for (const bool hard_reset : {true, false}) {
      const Tensors results = run({.neuron = "integrate_and_fire",
                                   .x = x.to(type),
                                   .v = at::zeros({5}, type),
                                   .params = {{"v_reset", .125}},
                                   .form = {.hard_reset = hard_reset}});
      REQUIRE(values_of(results[0]) == std::vector<Real>{1, 0, 0, 1, 0});
      const std::vector<Real> v = values_of(results[1]);
      CHECK(v[0] == (hard_reset ? .125L : 0));
      CHECK(v[1] == .5L);
      CHECK(std::isnan(v[2]));
      CHECK(v[3] == (hard_reset ? .125L : Real(infinity)));
      CHECK(v[4] == -Real(infinity));
    }
  }
}

TEST_CASE("only a call that will be differentiated writes checkpoints") {
  for (const NeuronFacts& neuron : neurons()) {
    INFO(neuron.name);
    const Tensor x = drive(neuron.name, {70, 11});
    const CheckpointSizes checkpoints;
    const Tensors trained = run(default_call(neuron.name, leaf(x)));
    REQUIRE(checkpoints.seen().size() == 1);
    REQUIRE(checkpoints.seen().back() > 0);  // the counter counts
    REQUIRE(trained[0].requires_grad());

    const Tensors constant = run(default_call(neuron.name, x));
    REQUIRE_FALSE(constant[0].requires_grad());
    {
      const at::NoGradGuard no_grad;
      const Tensors results = run(default_call(neuron.name, leaf(x)));
      REQUIRE_FALSE(results[0].requires_grad());
      REQUIRE(same_bits(results, constant));
    }
    {
      const c10::InferenceMode inference;
      const Tensors results = run(default_call(neuron.name, x.clone()));
      REQUIRE(results[0].is_inference());
      REQUIRE(same_bits(results, constant));
    }
    REQUIRE(checkpoints.seen() == std::vector<int64_t>{checkpoints.seen()[0], 0, 0, 0});
    for (std::size_t i = 0; i < trained.size(); ++i) REQUIRE(trained[i].equal(constant[i]));
  }
}

TEST_CASE("what is asked for decides what is differentiated: a parameter alone, a state alone") {
  const Tensor x = drive("lif", {9, 5}, at::kDouble), v = noise({5}, at::kDouble), tau = at::full({}, 2.5, at::kDouble);
  const auto wanted = [&](bool of_x, bool of_v, bool of_tau) {
    const Call call{.neuron = "lif",
                    .x = of_x ? leaf(x) : x,
                    .v = of_v ? leaf(v) : v,
                    .params = {{"tau", of_tau ? leaf(tau) : tau}}};
    return gradients(call, run(call), {noise({9, 5}, at::kDouble), noise({5}, at::kDouble, 4)});
  };
  const NamedGradients all = wanted(true, true, true);
  REQUIRE(all.names == std::vector<std::string>{"x", "state v", "tau"});
  REQUIRE(same_bits(wanted(true, false, false).values, {all.values[0]}));
  REQUIRE(same_bits(wanted(false, true, false).values, {all.values[1]}));
  REQUIRE(same_bits(wanted(false, false, true).values, {all.values[2]}));
}

TEST_CASE("what is refused is refused with the operator's and the argument's name") {
  const Tensor x = at::zeros({4, 3});
  const auto lif_with = [&](const std::map<std::string, Param>& params) {
    return run({.neuron = "lif", .x = x, .params = params});
  };
  CHECK_THROWS_WITH(run({.neuron = "lif", .x = x, .v = at::zeros({4})}), has_text("lif: v must have shape [3]"));
  CHECK_THROWS_WITH(run({.neuron = "izhikevich", .x = x, .w = at::zeros({3, 1})}),
                    has_text("izhikevich: w must have shape [3]"));
  CHECK_THROWS_WITH(lif_with({{"tau", at::ones({2})}}), has_text("lif: tau must broadcast against [3]"));
  CHECK_THROWS_WITH(lif_with({{"tau", 0.}}), has_text("lif: tau must be finite and above 0, but is 0"));
  CHECK_THROWS_AS(lif_with({{"tau", -1.}}), c10::ValueError);
  CHECK_THROWS_AS(lif_with({{"tau", std::numeric_limits<double>::infinity()}}), c10::ValueError);
  CHECK_THROWS_AS(lif_with({{"tau", std::numeric_limits<double>::quiet_NaN()}}), c10::ValueError);
  CHECK_THROWS_WITH(lif_with({{"tau", -1.}, {"v_threshold", at::ones({3})}}),
                    has_text("lif: tau must be finite and above 0"));
  CHECK_THROWS_WITH(lif_with({{"tau", Tensor()}}), has_text("lif: a parameter is an undefined tensor"));
  CHECK_THROWS_WITH(spikeforge::plif(x, Tensor()), has_text("plif: w is an undefined tensor"));
  CHECK_THROWS_WITH(spikeforge::lif(Tensor()), has_text("lif: x is an undefined tensor"));
  CHECK_THROWS_AS(lif_with({{"tau", at::ones({}, at::kInt)}}), c10::TypeError);
  CHECK_THROWS_AS(run({.neuron = "lif", .x = x.to(at::kLong)}), c10::TypeError);
  CHECK_THROWS_WITH(run({.neuron = "qif", .x = x.to(at::kLong)}),
                    has_text("qif: x must be float16, bfloat16, float32 or float64"));
  CHECK_THROWS_AS(run({.neuron = "lif", .x = at::zeros({})}), c10::ValueError);
  CHECK_THROWS_WITH(run({.neuron = "eif", .x = x, .surrogate = "sigmoidal"}),
                    has_text("eif: unknown surrogate \"sigmoidal\"; known are sigmoid, atan"));
  CHECK_THROWS_WITH(run({.neuron = "lif", .x = x, .surrogate_args = {1, 2}}),
                    has_text("surrogate sigmoid takes 1 number"));
  CHECK_THROWS_WITH(run({.neuron = "lif", .x = x, .surrogate_args = {-1}}),
                    has_text("alpha must be a finite number above 0, but is -1"));
  REQUIRE(x.equal(at::zeros({4, 3})));
}

}  // namespace spikeforge::test
