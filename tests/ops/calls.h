// Calls any neuron through its public C++ function.
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

// All options of a neuron.
std::vector<Form> forms(NeuronKind kind);

struct Call {
  std::string neuron;
  Tensor x;
  MaybeTensor v = {}, w = {};                // initial states; w is also the a of adaptive_lif
  std::map<std::string, Param> params = {};  // missing parameters have their defaults; includes the w of plif
  Form form = {};
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};
  bool store_v = false;
};

// Returns the spikes and the states.
Tensors run(const Call& call);

// The gradients, from autograd, of all tensors of a call that require grad: x, v, and the parameters by name. Undefined
// entries of `upstream` are for results without a gradient.
struct NamedGradients {
  std::vector<std::string> names;
  Tensors values;
};
NamedGradients gradients(const Call& call, const Tensors& results, const Tensors& upstream);

// Returns an input for which the neuron fires occasionally, the same on every machine.
Tensor drive(const std::string& neuron, at::IntArrayRef shape, at::ScalarType type = at::kFloat, unsigned seed = 1);
// Returns numbers between -1 and 1.
Tensor noise(at::IntArrayRef shape, at::ScalarType type = at::kFloat, unsigned seed = 2);

// Returns a call with the default parameters, except for w of plif, which has none.
Call default_call(const std::string& neuron, const Tensor& x);

bool same_bits(const Tensors& a, const Tensors& b);

Tensor leaf(const Tensor& t);

// In effect until the end of the scope.
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
