#include "tests/ops/calls.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>
#include <stdexcept>
#include <tuple>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

void set(Param& param, const Call& call, const char* name) {
  if (const auto given = call.params.find(name); given != call.params.end()) param = given->second;
}

template <class Arguments> void set_options(Arguments& arguments, const Call& call) {
  if (!call.form.hard_reset) arguments.v_reset = std::nullopt;
  arguments.detach_reset = call.form.detach_reset;
  arguments.surrogate = call.surrogate;
  arguments.surrogate_args = call.surrogate_args;
  arguments.spiking = call.form.spiking;
  arguments.store_v = call.store_v;
}

template <class Tuple> Tensors listed(const Tuple& results) {
  return std::apply([](const auto&... t) { return Tensors{t...}; }, results);
}

Tensor random_tensor(at::IntArrayRef shape, at::ScalarType type, unsigned seed, double low, double high) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  const Tensor t = at::empty(shape, at::kDouble);
  double* values = t.mutable_data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) values[i] = uniform(random);
  return t.to(type);
}

}  // namespace

std::string Form::text() const {
  return std::string(hard_reset ? "hard" : "soft") + (detach_reset ? ", detached" : "") + (spiking ? "" : ", smooth") +
         (decay_input ? "" : ", undecayed input");
}

std::vector<Form> forms(NeuronKind kind) {
  std::vector<Form> all;
  for (int bits = 0; bits < 16; ++bits) {
    const Form form{(bits & 1) == 0, (bits & 2) != 0, (bits & 4) == 0, (bits & 8) == 0};
    if (form.decay_input || has_decay_input(kind)) all.push_back(form);
  }
  return all;
}

Tensors run(const Call& call) {
  const MaybeTensor states[] = {call.v, call.w};
#define SPIKEFORGE_PLACE(name) place_of_##name,
#define SPIKEFORGE_STATE(name) states[place_of_##name],
#define SPIKEFORGE_TENSOR(name) call.params.at(#name).tensor(),
#define SPIKEFORGE_PARAM(name, default_value, legal) set(arguments.name, call, #name);
#define SPIKEFORGE_V_RESET(default_value) set(*arguments.v_reset, call, "v_reset");
#define SPIKEFORGE_DECAY_INPUT() arguments.decay_input = call.form.decay_input;
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states_, params)                                           \
  if (call.neuron == #name) {                                                                                       \
    enum { SPIKEFORGE_EACH(SPIKEFORGE_PLACE, states_) };                                                            \
    Struct##Arguments arguments;                                                                                    \
    params set_options(arguments, call);                                                                            \
    return listed(name(                                                                                             \
        call.x, SPIKEFORGE_EACH(SPIKEFORGE_TENSOR, tensors) SPIKEFORGE_EACH(SPIKEFORGE_STATE, states_) arguments)); \
  }
#include "csrc/neuron/neurons.def"
  throw std::invalid_argument("no neuron is called " + call.neuron);
}

NamedGradients gradients(const Call& call, const Tensors& results, const Tensors& upstream) {
  NamedGradients named;
  Tensors inputs, outputs, grads;
  const auto add = [&](const std::string& name, const Tensor& t) {
    if (!t.requires_grad()) return;
    named.names.push_back(name);
    inputs.push_back(t);
  };
  add("x", call.x);
  if (call.v) add("state v", *call.v);
  if (call.w) add("state w", *call.w);
  for (const auto& [name, param] : call.params)
    if (param.is_tensor()) add(name, param.tensor());
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!upstream[i].defined()) continue;
    outputs.push_back(results[i]);
    grads.push_back(upstream[i]);
  }
  named.values = torch::autograd::grad(outputs, inputs, grads, /*retain_graph=*/false, /*create_graph=*/false,
                                       /*allow_unused=*/true);
  return named;
}

Tensor drive(const std::string& neuron, at::IntArrayRef shape, at::ScalarType type, unsigned seed) {
  static const std::map<std::string, std::pair<double, double>> ranges = {
      {"integrate_and_fire", {-.5, 1.4}}, {"qif", {-1.8, 2.6}},      {"eif", {-1.8, 1.8}},
      {"izhikevich", {-1.8, 2.3}},        {"adaptive_lif", {-1, 3}},
  };
  const auto range = ranges.find(neuron);
  const auto [low, high] = range != ranges.end() ? range->second : std::pair(-1., 2.6);
  return random_tensor(shape, type, seed, low, high);
}

Tensor noise(at::IntArrayRef shape, at::ScalarType type, unsigned seed) {
  return random_tensor(shape, type, seed, -1, 1);
}

Call default_call(const std::string& neuron, const Tensor& x) {
  Call call{.neuron = neuron, .x = x};
  if (neuron == "plif") call.params.emplace("w", at::zeros({}, x.scalar_type()));
  return call;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].scalar_type() != b[i].scalar_type() || !a[i].equal(b[i])) return false;
  return true;
}

Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(true); }

ThreadCount::ThreadCount(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
ThreadCount::~ThreadCount() { at::set_num_threads(before_); }

}  // namespace spikeforge::test
