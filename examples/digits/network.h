// A spiking network for images of 8 x 8 pixels: two convolutions and two linear layers, each followed by spiking
// neurons.
#pragma once

#include <spikeforge/nn/containers.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>

struct NetworkOptions {
  std::string neuron = "lif";  // if, lif, plif, qif, eif or izhikevich
  int64_t steps = 8;
};

class NetworkImpl : public torch::nn::Module {
 public:
  explicit NetworkImpl(const NetworkOptions& options);

  // Images [batch, 1, 8, 8] to the number of spikes of each class, [batch, 10].
  at::Tensor forward(const at::Tensor& images);

  const NetworkOptions& options() const { return options_; }
  // From the current of the first convolution, [T, batch, 32, 8, 8], to the spikes of the classes. Its neurons are
  // called "conv 1", "conv 2", "linear" and "output".
  const spikeforge::nn::Sequential& layers() const { return layers_; }

 private:
  NetworkOptions options_;
  torch::nn::Sequential current_;
  spikeforge::nn::Sequential layers_;
};
TORCH_MODULE(Network);

void save(Network network, const std::string& path);
Network load(const std::string& path);
