// A spiking network for images of 8 x 8 pixels: two convolutions and two linear layers, each followed by spiking
// neurons.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

// A layer of neurons: if, lif, plif, qif, eif or izhikevich. It takes input currents [T, batch, ...] and gives spikes
// of the same shape.
class NeuronImpl : public torch::nn::Module {
 public:
  explicit NeuronImpl(std::string kind);
  at::Tensor forward(const at::Tensor& current);

 private:
  std::string kind_;
  at::Tensor w_;  // plif learns its time constant: 1/tau = sigmoid(w)
};
TORCH_MODULE(Neuron);

struct NetworkOptions {
  std::string neuron = "lif";
  int64_t steps = 8;
};

class NetworkImpl : public torch::nn::Module {
 public:
  explicit NetworkImpl(const NetworkOptions& options);

  // Images [batch, 1, 8, 8] to the spikes of every layer, [T, batch, ...] each. The last layer has one neuron a class.
  std::vector<at::Tensor> spikes(const at::Tensor& images);

  // Images to the number of spikes of each class, [batch, 10].
  at::Tensor forward(const at::Tensor& images);

  const NetworkOptions& options() const { return options_; }

 private:
  NetworkOptions options_;
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Linear linear1_, linear2_;
  torch::nn::BatchNorm2d norm1_, norm2_;
  torch::nn::BatchNorm1d norm3_;
  Neuron neuron1_, neuron2_, neuron3_, neuron4_;
};
TORCH_MODULE(Network);

void save(Network network, const std::string& path);
Network load(const std::string& path);
