// One way to call any of the neurons through their public C++ functions.
#pragma once

#include "ops/neuron.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace spikeforge::test {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Form {
  bool hard_reset = true, detach_reset = false, spiking = true, decay_input = true;

  std::string text() const;
};

// Every choice that the neuron has.
std::vector<Form> forms(NeuronKind kind);

struct Call {
  std::string neuron;
  Tensor x;
  MaybeTensor v = {}, w = {};                // initial states; w is also the a of adaptive_lif
  std::map<std::string, Param> params = {};  // what is missing has its default; plif's w is one of them
  Form form = {};
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool store_v = false;
};

// The spikes and the states.
Tensors run(const Call& call);

// By autograd, for what requires grad among a call's tensors: x, v, w and the parameters by their names. `upstream` may
// have undefined entries, for results without a gradient.
struct NamedGradients {
  std::vector<std::string> names;
  Tensors values;
};
NamedGradients gradients(const Call& call, const Tensors& results, const Tensors& upstream);

// A drive under which a neuron fires now and then, the same on every machine.
Tensor drive(const std::string& neuron, at::IntArrayRef shape, at::ScalarType type = at::kFloat, unsigned seed = 1);
// Between -1 and 1.
Tensor noise(at::IntArrayRef shape, at::ScalarType type = at::kFloat, unsigned seed = 2);

// plif has no call without its w.
Call default_call(const std::string& neuron, const Tensor& x);

bool same_bits(const Tensors& a, const Tensors& b);

Tensor leaf(const Tensor& t);

// For the time of a scope.
class ThreadCount {
 public:
  explicit ThreadCount(int threads);
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

}  // namespace spikeforge::test
