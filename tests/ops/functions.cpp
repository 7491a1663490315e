// Compares the neurons' C++ functions with their operators, which tests/python/multistep compares with loops over the
// equations.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>

#include "tests/catch.h"
#include "tests/ops/calls.h"

namespace spikeforge::test {
namespace {

const std::vector<int64_t> shape = {2, 3, 2};  // [batch, channels, width]
constexpr int64_t n_steps = 7;

enum class Kind { number, zero_dim, per_channel, per_neuron };

Param random_param(Kind kind, double default_value, unsigned salt) {
  if (kind == Kind::number) return default_value - .03 * (salt % 10);
  const std::vector<std::int64_t> shapes[] = {{}, {}, {3, 1}, shape};
  return leaf(noise(shapes[int(kind)], at::kDouble, salt).abs().mul(-.3).add(default_value));
}

Call random_call(NeuronKind kind, const Form& form, bool given_states, bool store_v, unsigned salt) {
  const NeuronRow& row = neuron_row(kind);
  Call call{.neuron = row.name,
            .x = leaf(drive(row.name, {n_steps, 2, 3, 2}, at::kDouble, salt)),
            .form = form,
            .surrogate_args = {2.5},
            .store_v = store_v};
  if (given_states) call.v = leaf(noise(shape, at::kDouble, salt + 1));
  if (given_states && row.states.size() == 2) call.w = leaf(noise(shape, at::kDouble, salt + 2));
  for (const char* name : row.tensors) call.params.emplace(name, random_param(Kind(1 + salt % 3), 0, salt));
  for (const NeuronParam& param : row.params) {
    ++salt;
    if (param.role != NeuronParam::decay_input && (form.hard_reset || param.role != NeuronParam::v_reset))
      call.params.emplace(param.name, random_param(Kind(salt % 4), param.default_value, salt));
  }
  return call;
}

// The operator is called with named arguments.
Tensors run_operator(const Call& call) {
  std::map<std::string, c10::IValue> given = {{"x", call.x},
                                              {"decay_input", call.form.decay_input},
                                              {"detach_reset", call.form.detach_reset},
                                              {"surrogate", call.surrogate},
                                              {"surrogate_args", call.surrogate_args},
                                              {"spiking", call.form.spiking},
                                              {"store_v", call.store_v}};
  for (const auto& [name, param] : call.params)
    given.emplace(name, param.is_tensor() ? c10::IValue(param.tensor()) : c10::IValue(param.number()));
  if (!call.form.hard_reset) given.emplace("v_reset", c10::IValue());
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("spikeforge::" + call.neuron).c_str(), "any");
  std::vector<c10::IValue> stack;
  int states = 0;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const auto found = given.find(argument.name());
    if (found != given.end())
      stack.push_back(found->second);
    else if (!argument.kwarg_only())
      stack.emplace_back(states++ == 0 ? call.v : call.w);
    else
      stack.push_back(*argument.default_value());
  }
  op.callBoxed(stack);
  Tensors results;
  for (const c10::IValue& result : stack) results.push_back(result.toTensor());
  return results;
}

void check_call(const Call& call) {
  const Tensors results = run(call), expected = run_operator(call);
  REQUIRE(results.size() == expected.size());
  Tensors upstream;
  for (std::size_t i = 0; i < results.size(); ++i) {
    REQUIRE(results[i].sizes() == expected[i].sizes());
    CHECK(at::allclose(results[i], expected[i], 0, 0, /*equal_nan=*/true));
    upstream.push_back(noise(results[i].sizes(), at::kDouble, unsigned(i) + 7));
  }
  const NamedGradients actual = gradients(call, results, upstream), wanted = gradients(call, expected, upstream);
  for (std::size_t i = 0; i < actual.names.size(); ++i) {
    INFO("the gradient of " << actual.names[i]);
    REQUIRE(actual.values[i].defined());
    CHECK(at::allclose(actual.values[i], wanted.values[i], 0, 0, /*equal_nan=*/true));
  }
}

}  // namespace

TEST_CASE("the function of each neuron gives the bits of its operator, and the operator's gradients") {
  unsigned salt = 0;
  for (const NeuronKind kind : all_neurons)
    for (const Form& form : forms(kind))
      for (const bool given_states : {true, false})
        for (const bool store_v : {false, true}) {
          INFO(neuron_row(kind).name << " (" << form.text() << "), given states " << given_states << ", store_v "
                                     << store_v << ", seed " << salt);
          check_call(random_call(kind, form, given_states, store_v, salt++));
        }
}

TEST_CASE("a call that names no parameter has the operator's defaults") {
  for (const NeuronKind kind : all_neurons) {
    const std::string name = neuron_row(kind).name;
    INFO(name);
    check_call(default_call(name, leaf(drive(name, {19, 5}, at::kDouble))));
  }
}

}  // namespace spikeforge::test
