// Descriptions of networks with random parts, connections, delays and loops. The module and a simple, slow simulator
// are built from the same description.
#pragma once

#include "csrc/nn/composite.h"
#include "csrc/nn/time_distributed.h"

#include <torch/nn/modules/linear.h>

#include <map>

#include "tests/nn/modules.h"

namespace spikeforge::test {

struct RandomNetwork {
  struct Edge {
    std::string from, to;  // names of parts; empty: a port of the network
    std::int64_t delay;
  };
  std::vector<std::pair<std::string, nn::Part>> parts;  // in the resting state
  std::vector<Edge> edges;
  bool has_loop = false;

  nn::Composite build(bool step_loops = true) const {
    nn::Composite net(nn::CompositeOptions().step_loops(step_loops));
    for (const auto& [name, part] : parts) net->add(name, part.clone());
    for (const Edge& e : edges)
      net->connect(e.from.empty() ? "in" : e.from + ".out", e.to.empty() ? "out" : e.to + ".in", {.delay = e.delay});
    return net;
  }
};

// exact_layers: each Linear runs once per step, with any weights. Otherwise it runs once for all steps, with weights of
// few bits.
inline RandomNetwork random_network(std::mt19937& random, bool exact_layers) {
  const auto up_to = [&](int n) { return static_cast<int>(random() % n); };
  const auto neurons = all_neurons();
  RandomNetwork net;
  const int n = 2 + up_to(5);
  for (int i = 0; i < n; ++i) {
    const std::string name = "part" + std::to_string(i);
    if (i % 2 == 1 && exact_layers)
      net.parts.emplace_back(name, torch::nn::Linear(width, width));
    else if (i % 2 == 1) {
      torch::nn::Linear linear(width, width);
      const at::NoGradGuard no_grad;
      for (const Tensor& p : linear->parameters()) Tensor(p).copy_((p * 32).round() / 16);
      net.parts.emplace_back(name, nn::TimeDistributed(linear));
    } else {
      // A neuron that spikes (any but LI), so that its outputs have few bits.
      std::size_t k = 0;
      do k = up_to(static_cast<int>(neurons.size()));
      while (neurons[k].name == "LI");
      net.parts.emplace_back(name, neurons[k].make(false));
    }
    // The part from which it receives its input; -1 is the input of the network.
    int from = up_to(i + 1) - 1;
    if (!exact_layers && i % 2 == 1 && from % 2 == 1) --from;  // a neuron's output: sums of sums need too many bits
    net.edges.push_back({from < 0 ? "" : "part" + std::to_string(from), name, up_to(3) == 0 ? up_to(4) : 0});
  }
  for (int k = 0; k < n; ++k) {
    const int from = up_to(n), to = up_to(n);
    if (!exact_layers && to % 2 == 1 && from % 2 == 1) continue;
    const std::int64_t delay = from < to ? up_to(4) : 1 + up_to(4);
    const RandomNetwork::Edge edge{"part" + std::to_string(from), "part" + std::to_string(to), delay};
    const bool is_new = std::none_of(net.edges.begin(), net.edges.end(), [&](const auto& e) {
      return e.from == edge.from && e.to == edge.to && e.delay == edge.delay;
    });
    if (!is_new) continue;
    net.edges.push_back(edge);
    net.has_loop = net.has_loop || from >= to;
  }
  net.edges.push_back({"part" + std::to_string(n - 1), "", up_to(3)});
  if (up_to(2)) net.edges.push_back({"part0", "", up_to(3)});
  return net;
}

// Simulates the network step by step from its description: in each step, a part runs when all its inputs without delay
// are available. Inputs with a delay are read from the stored outputs of all steps.
inline Tensor simulate(const RandomNetwork& net, const Tensor& x_seq) {
  std::map<std::string, nn::Part> parts;
  for (const auto& [name, part] : net.parts) parts.emplace(name, part.clone());
  std::map<std::string, Tensors> past;  // the outputs of each part
  Tensors results;
  const auto value = [&](const RandomNetwork::Edge& e, std::int64_t t) -> Tensor {
    if (t < e.delay) return {};
    return e.from.empty() ? x_seq[t - e.delay] : past[e.from][t - e.delay];
  };
  for (std::int64_t t = 0; t < x_seq.size(0); ++t) {
    const auto sum_into = [&](const std::string& to) {
      Tensor sum = at::zeros({x_seq.size(1), width});
      for (const auto& e : net.edges)
        if (e.to == to)
          if (const Tensor v = value(e, t); v.defined()) sum = sum + v;
      return sum;
    };
    std::vector<std::string> waiting;
    for (const auto& [name, part] : parts) waiting.push_back(name);
    while (!waiting.empty()) {
      const auto ready = std::find_if(waiting.begin(), waiting.end(), [&](const std::string& name) {
        return std::all_of(net.edges.begin(), net.edges.end(), [&](const auto& e) {
          return e.to != name || e.delay > 0 || e.from.empty() || past[e.from].size() > static_cast<std::size_t>(t);
        });
      });
      REQUIRE(ready != waiting.end());
      const nn::Part& part = parts.at(*ready);
      const Tensor x = sum_into(*ready).unsqueeze(0);
      past[*ready].push_back(part.run({&x, 1}, 1)[0].squeeze(0));
      waiting.erase(ready);
    }
    results.push_back(sum_into(""));
  }
  return at::stack(results);
}

}  // namespace spikeforge::test
