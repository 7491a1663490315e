#include "tests/ops/calls.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <stdexcept>
#include <tuple>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

void set(Param& param, const Call& call, const char* name) {
  if (const auto given = call.params.find(name); given != call.params.end()) param = given->second;
}

template <class Options>
Options options_of(const Call& call) {
  Options o;
  set(o.v_threshold, call, "v_threshold");
  if (const auto given = call.params.find("v_reset"); given != call.params.end()) o.v_reset = given->second;
  if (!call.form.hard_reset) o.v_reset = std::nullopt;
  o.detach_reset = call.form.detach_reset;
  o.surrogate = call.surrogate;
  o.surrogate_args = call.surrogate_args;
  o.spiking = call.form.spiking;
  o.store_v = call.store_v;
  return o;
}

template <class Tuple>
Tensors listed(const Tuple& results) {
  return std::apply([](const auto&... t) { return Tensors{t...}; }, results);
}

Tensors run_if(const Call& call) { return listed(integrate_and_fire(call.x, call.v, options_of<IfOptions>(call))); }

Tensors run_lif(const Call& call) {
  auto o = options_of<LifOptions>(call);
  set(o.tau, call, "tau");
  o.decay_input = call.form.decay_input;
  return listed(lif(call.x, call.v, o));
}

Tensors run_plif(const Call& call) {
  auto o = options_of<PlifOptions>(call);
  o.decay_input = call.form.decay_input;
  return listed(plif(call.x, call.params.at("w").tensor(), call.v, o));
}

Tensors run_qif(const Call& call) {
  auto o = options_of<QifOptions>(call);
  set(o.tau, call, "tau");
  set(o.v_c, call, "v_c");
  set(o.a0, call, "a0");
  set(o.v_rest, call, "v_rest");
  return listed(qif(call.x, call.v, o));
}

Tensors run_eif(const Call& call) {
  auto o = options_of<EifOptions>(call);
  set(o.tau, call, "tau");
  set(o.delta_t, call, "delta_t");
  set(o.theta_rh, call, "theta_rh");
  set(o.v_rest, call, "v_rest");
  return listed(eif(call.x, call.v, o));
}

Tensors run_izhikevich(const Call& call) {
  auto o = options_of<IzhikevichOptions>(call);
  set(o.tau, call, "tau");
  set(o.v_c, call, "v_c");
  set(o.a0, call, "a0");
  set(o.v_rest, call, "v_rest");
  set(o.w_rest, call, "w_rest");
  set(o.tau_w, call, "tau_w");
  set(o.a, call, "a");
  set(o.b, call, "b");
  return listed(izhikevich(call.x, call.v, call.w, o));
}

Tensors run_adaptive_lif(const Call& call) {
  auto o = options_of<AdaptiveLIFArguments>(call);
  set(o.tau, call, "tau");
  set(o.decay, call, "decay");
  set(o.b, call, "b");
  o.decay_input = call.form.decay_input;
  return listed(adaptive_lif(call.x, call.v, call.w, o));
}

Tensor random_tensor(at::IntArrayRef shape, at::ScalarType type, unsigned seed, Real low, Real high) {
  Random random(seed);
  const Tensor t = at::empty(shape, at::kDouble);
  double* values = t.mutable_data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) values[i] = double(random.uniform(low, high));
  return t.to(type);
}

}  // namespace

Tensors run(const Call& call) {
  if (call.neuron == "integrate_and_fire") return run_if(call);
  if (call.neuron == "lif") return run_lif(call);
  if (call.neuron == "plif") return run_plif(call);
  if (call.neuron == "qif") return run_qif(call);
  if (call.neuron == "eif") return run_eif(call);
  if (call.neuron == "izhikevich") return run_izhikevich(call);
  if (call.neuron == "adaptive_lif") return run_adaptive_lif(call);
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
  for (const NeuronFacts& facts : neurons())
    if (facts.name == neuron) return random_tensor(shape, type, seed, facts.weakest, facts.strongest);
  throw std::invalid_argument("no neuron is called " + neuron);
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

std::vector<Real> values_of(const Tensor& t) {
  const Tensor flat = t.detach().to(at::kDouble).contiguous();
  const double* values = flat.const_data_ptr<double>();
  return {values, values + flat.numel()};
}

Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(true); }

ThreadCount::ThreadCount(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
ThreadCount::~ThreadCount() { at::set_num_threads(before_); }

}  // namespace spikeforge::test
