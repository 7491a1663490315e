// An instance of every fixed-point module, with the equivalent operator call.
#pragma once

#include "csrc/nn/loihi.h"

#include <ATen/ops/randint.h>

#include "tests/nn/modules.h"

namespace spikeforge::test {

struct MadeLoihi {
  std::string name;
  std::function<std::shared_ptr<Stateful>(bool persistent)> make;
  std::function<Tensors(const Tensor& x)> op;  // returns the output and the last states
  std::int64_t most;                           // the largest input
};

inline Tensor random_ints(std::int64_t least, std::int64_t most, at::IntArrayRef shape) {
  return at::randint(least, most + 1, shape, at::kInt);
}

// `width` is the number of neurons, or of inputs and outputs. Inputs of neurons are large enough for u to wrap.
inline std::vector<MadeLoihi> all_loihi_modules() {
  using namespace nn;
  constexpr std::int64_t current = 1 << 15, message = 200;
  std::vector<MadeLoihi> all;

  const auto states_of = [](const LoihiResults& results) {
    Tensors flat{results.spikes, results.u, results.v};
    if (results.counter.defined()) flat.push_back(results.counter);
    return flat;
  };
  const Tensor bias = random_ints(-4096, 4095, {width}), dv = random_ints(0, 4095, {width});
  const Tensor low = random_ints(-90000, 0, {3, 1});
  const auto add_neuron = [&](const std::string& name, const LoihiLIFOptions& options, const LoihiOptions& call) {
    all.push_back({name, [=](bool p) { return LoihiLIF(LoihiLIFOptions(options).persistent_state(p)).ptr(); },
                   [=, ternary = options.ternary()](const Tensor& x) {
                     return states_of(ternary ? loihi_ternary_lif(x, {}, call) : loihi_lif(x, {}, call));
                   },
                   current});
  };
  add_neuron("LoihiLIF", LoihiLIFOptions(), {});
  add_neuron("LoihiLIF of numbers", LoihiLIFOptions().du(409).dv(120).bias_mant(-90).bias_exp(3).vth(9000),
             {.du = 409, .dv = 120, .bias_mant = -90, .bias_exp = 3, .vth = 9000});
  add_neuron("LoihiLIF with biases", LoihiLIFOptions().du(-1).bias_mant(bias).bias_exp(6).vth(40000),
             {.du = -1, .bias_mant = bias, .bias_exp = 6, .vth = 40000});
  add_neuron("LoihiLIF of tensors", LoihiLIFOptions().dv(dv).bias_mant(bias).vth(30000).du(2047),
             {.du = 2047, .dv = dv, .bias_mant = bias, .vth = 30000});
  add_neuron("LoihiLIF, reset",
             LoihiLIFOptions().form(LoihiForm::reset).reset_interval(5).reset_offset(2).dv(dv).vth(50000),
             {.dv = dv, .vth = 50000, .form = LoihiForm::reset, .reset_interval = 5, .reset_offset = 2});
  add_neuron("LoihiLIF, refractory", LoihiLIFOptions().form(LoihiForm::refractory).refractory_period(3).vth(20000),
             {.vth = 20000, .form = LoihiForm::refractory, .refractory_period = 3});
  add_neuron("LoihiLIF, ternary", LoihiLIFOptions().ternary(true).du(300).vth_hi(20000).vth_lo(-30000),
             {.du = 300, .vth = 20000, .vth_lo = -30000});
  add_neuron("LoihiLIF, ternary, reset",
             LoihiLIFOptions().ternary(true).form(LoihiForm::reset).reset_interval(7).vth_hi(9000).vth_lo(low),
             {.vth = 9000, .vth_lo = low, .form = LoihiForm::reset, .reset_interval = 7});
  add_neuron("LoihiLIF, ternary, refractory",
             LoihiLIFOptions().ternary(true).form(LoihiForm::refractory).bias_mant(bias).vth_hi(9000).vth_lo(-9000),
             {.bias_mant = bias, .vth = 9000, .vth_lo = -9000, .form = LoihiForm::refractory});

  const Tensor weight = random_ints(-256, 255, {width, width}), delays = random_ints(0, 4, {width, width});
  const Tensor csr = (weight * (weight % 3 == 0)).to_sparse_csr();
  const auto add = [&](const std::string& name, auto&& make, auto&& op) { all.push_back({name, make, op, message}); };
  const auto pair_of = [](const Arrivals& arrivals, std::int64_t delay) {
    return delay == 0 ? Tensors{arrivals.y} : Tensors{arrivals.y, arrivals.buffer};
  };
  for (const std::int64_t delay : {0, 1, 4}) {
    const LoihiConnectionOptions call{.delay = delay, .weight_exp = delay - 2, .num_message_bits = delay == 1 ? 0 : 8};
    const auto set = [=](auto options, bool persistent) {
      return options.weight_exp(call.weight_exp).num_message_bits(call.num_message_bits).persistent_state(persistent);
    };
    const std::string by = ", delay " + std::to_string(delay);
    add(
        "LoihiDense" + by, [=](bool p) { return LoihiDense(set(LoihiDenseOptions(weight).delay(delay), p)).ptr(); },
        [=](const Tensor& x) { return pair_of(loihi_dense(x, weight, {}, call), delay); });
    const LoihiSparseOptions sparse(csr.crow_indices(), csr.col_indices(), csr.values());
    add(
        "LoihiSparse" + by, [=](bool p) { return LoihiSparse(set(LoihiSparseOptions(sparse).delay(delay), p)).ptr(); },
        [=](const Tensor& x) {
          return pair_of(loihi_sparse(x, sparse.crow_indices, sparse.col_indices, sparse.values, {}, call), delay);
        });
    add(
        "LoihiDelayDense" + by,
        [=](bool p) { return LoihiDelayDense(set(LoihiDelayDenseOptions(weight, delays, 4 + delay), p)).ptr(); },
        [=](const Tensor& x) { return pair_of(loihi_delay_dense(x, weight, delays, 4 + delay, {}, call), 1); });
  }
  return all;
}

}  // namespace spikeforge::test
