// Two layers of three neurons, each of them a Dense and a LIF, step by step: the hierarchical-process tutorial of Lava
// (github.com/lava-nc/lava), whose table this prints.
//
// The LIF here is Lava's: a current u and a voltage v that decay by du and dv of themselves, a bias, and a reset to 0
// at v >= vth. A Dense sends its input one step later: a connection with delay 1.
#include <spikeforge/nn/monitor.h>
#include <spikeforge/nn/neuron.h>
#include <spikeforge/nn/simulation.h>
#include <torch/nn/modules/linear.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <string>
#include <vector>

namespace {

namespace nn = spikeforge::nn;
using spikeforge::step;
using spikeforge::Value;

constexpr int steps = 9, neurons = 3;

nn::Neuron lava_lif() {
  const auto lif = spikeforge::trace("lava_lif", {"a"}, {"u", "v"}, {"du", "dv", "bias", "vth"},
                                     [](Value a, Value u, Value v, Value du, Value dv, Value bias, Value vth) {
                                       const Value current = u * (1 - du) + a;
                                       const Value h = v * (1 - dv) + current + bias;
                                       const Value s = spike(h - vth, spikeforge::surrogate::none());
                                       return step({s}, {current, select(s, 0, h)});
                                     });
  return nn::Neuron(
      nn::NeuronOptions(lif).param("du", 0).param("dv", 0).param("bias", at::full({neurons}, 4.0)).param("vth", 10));
}

// A Dense and a LIF as one module, with aliases for their variables.
nn::Composite dense_layer(const at::Tensor& weights) {
  torch::nn::Linear dense(torch::nn::LinearOptions(neurons, neurons).bias(false));
  nn::Composite layer;
  layer->add("dense", dense);
  layer->add("lif", lava_lif());
  layer->connect("s_in", "dense.in");
  layer->connect("dense.out", "lif.in", {.delay = 1});
  layer->connect("lif.out", "s_out");
  layer->alias("weights", dense->weight);
  layer->alias("bias", "lif.bias");
  layer->alias("u", "lif.u", {{neurons}});
  layer->alias("v", "lif.v", {{neurons}});
  layer->set("weights", weights);
  return layer;
}

nn::Composite network() {
  at::Tensor weights = at::zeros({neurons, neurons});
  weights[1][1] = 1;
  nn::Composite net;
  net->add("layer0", dense_layer(weights));
  net->add("layer1", dense_layer(weights));
  net->connect("nothing", "layer0.s_in");  // there are no external spikes
  net->connect("layer0.s_out", "layer1.s_in");
  return net;
}

std::string row_of(const at::Tensor& values) {
  return fmt::format("{} {} {}", values[0].item<int>(), values[1].item<int>(), values[2].item<int>());
}

}  // namespace

int main() {
  const at::Tensor nothing = at::zeros({neurons});
  const char* const variables[] = {"layer0.v", "layer1.u", "layer1.v"};

  nn::Simulation stepped(network());
  fmt::print(" t | layer0.v | layer1.u | layer1.v\n");
  std::vector<at::Tensor> rows[3];
  for (int t = 0; t < steps; ++t) {
    stepped.run(1, nothing);
    for (int k = 0; k < 3; ++k) rows[k].push_back(stepped.get(variables[k]));
    fmt::print(" {} |   {}  |   {}  |   {}\n", t, row_of(rows[0][t]), row_of(rows[1][t]), row_of(rows[2][t]));
  }

  // The same as one run.
  const nn::Composite net = network();
  const nn::Monitor monitor(net, {"layer0.v", "layer1.u", "layer1.v"});
  nn::Simulation(net).run(steps, nothing);
  for (int k = 0; k < 3; ++k)
    for (int t = 0; t < steps; ++t)
      if (!at::equal(monitor[variables[k]][t], rows[k][t])) {
        fmt::print("{} of one run differs in step {}\n", variables[k], t);
        return 1;
      }
  fmt::print("One run of {} steps gives the same.\n", steps);
}
