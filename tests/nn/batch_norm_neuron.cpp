// Compares BatchNormNeuron with torch's batch normalisation followed by the neuron.
#include "csrc/nn/batch_norm_neuron.h"
#include "csrc/nn/containers.h"
#include "csrc/nn/time_distributed.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <cmath>
#include <sstream>

#include "tests/nn/modules.h"

namespace spikeforge::test {
namespace {

using nn::BatchNormNeuron;
using nn::BatchNormNeuronOptions;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;

constexpr const char* leaky =
    "neuron leaky(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }";

nn::Neuron text_neuron() { return nn::Neuron(nn::NeuronOptions(std::string(leaky)).param("tau", nn::Learnable(2.0))); }

// A normalisation with running statistics, for which the neuron fires.
BatchNorm2d seasoned(std::int64_t channels, std::optional<double> momentum = 0.1) {
  BatchNorm2d norm(torch::nn::BatchNorm2dOptions(channels).momentum(momentum));
  norm->bias.data().fill_(1.0);
  norm->to(at::kDouble);
  norm(at::randn({4, channels, 3, 3}, at::kDouble) + 1);
  return norm;
}

BatchNorm2d copy_of(const BatchNorm2d& norm) {
  return BatchNorm2d(std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(norm->clone()));
}

Tensors gradients(const Tensor& y, const Tensors& leaves) {
  for (const Tensor& leaf : leaves) leaf.mutable_grad() = Tensor();
  y.sum().backward();
  Tensors found;
  for (const Tensor& leaf : leaves) found.push_back(leaf.grad().clone());
  return found;
}

void check_buffers(const BatchNorm2d& found, const BatchNorm2d& expected) {
  CHECK(found->running_mean.allclose(expected->running_mean, 1e-10, 1e-12));
  CHECK(found->running_var.allclose(expected->running_var, 1e-10, 1e-12));
  CHECK(at::equal(found->num_batches_tracked, expected->num_batches_tracked));
}

}  // namespace

TEST_CASE("a BatchNormNeuron is the normalisation and then the neuron, with their gradients and statistics") {
  for (const std::optional<double> momentum : {std::optional<double>(0.3), std::optional<double>()})
    for (const bool training : {true, false})
      for (const bool as_text : {true, false}) {  // in one pass, or in two
        INFO(momentum.value_or(-1) << ' ' << training << ' ' << as_text);
        at::manual_seed(4);
        BatchNorm2d norm = seasoned(3, momentum), twin = copy_of(norm);
        nn::Neuron text = text_neuron();
        text->to(at::kDouble);
        nn::LIF lif(nn::LIFOptions().surrogate("atan"));
        const std::shared_ptr<nn::NeuronModule> neuron =
            as_text ? std::shared_ptr<nn::NeuronModule>(text.ptr()) : std::shared_ptr<nn::NeuronModule>(lif.ptr());
        nn::BatchNormNeuronImpl layer(norm.ptr(), neuron);
        layer.train(training), twin->train(training);
        Tensor x = at::randn({5, 4, 3, 6, 6}, at::kDouble).requires_grad_();
        for (int call = 0; call < 2; ++call) {  // states continue from call to call
          const Tensor found = layer.forward(x);
          const Tensor state = layer.state("neuron.v").detach().clone();
          layer.set_state("neuron.v", {});
          nn::LIF alone(nn::LIFOptions().surrogate("atan"));
          const Tensor expected = alone->forward(twin(x.flatten(0, 1)).view(x.sizes()));
          CHECK(at::equal(found, expected));
          CHECK(found.any().item<bool>());
          CHECK(state.allclose(alone->state("v"), 1e-10, 1e-12));
          const Tensor weights = at::rand(found.sizes(), at::kDouble);
          const Tensors grads = gradients(found * weights, {x, norm->weight, norm->bias});
          const Tensors wanted = gradients(expected * weights, {x, twin->weight, twin->bias});
          for (std::size_t i = 0; i < grads.size(); ++i) CHECK(grads[i].allclose(wanted[i], 1e-7, 1e-9));
          check_buffers(norm, twin);
        }
      }
}

TEST_CASE("a BatchNormNeuron goes on from its state, in pieces as at once in evaluation") {
  at::manual_seed(5);
  BatchNormNeuron layer(seasoned(3), text_neuron());
  layer->to(at::kDouble);
  layer->eval();
  const Tensor x = at::randn({9, 2, 3, 4, 4}, at::kDouble);
  const Tensor whole = layer(x);
  CHECK(layer->state().keys() == std::vector<std::string>{"neuron.v"});
  layer->reset();
  CHECK(layer->state().is_empty());
  CHECK(at::equal(by_steps(*layer, x), whole));
  layer->reset();
  std::mt19937 random(3);
  CHECK(at::equal(in_chunks(*layer, x, random, /*empty_ones=*/false), whole));
  CHECK(layer->named_parameters().contains("norm.weight"));
  CHECK(layer->named_parameters().contains("neuron.tau"));
}

TEST_CASE("residuals of a BatchNormNeuron are joined as in SEW-ResNet, and a scale is that of tdBN") {
  at::manual_seed(6);
  const Tensor x = at::randn({5, 4, 3, 6, 6}, at::kDouble), r = at::randint(0, 3, x.sizes(), at::kDouble);
  const std::vector<std::pair<std::string, std::function<Tensor(Tensor)>>> modes{
      {"add", [&](const Tensor& s) { return s + r; }},
      {"and", [&](const Tensor& s) { return s * r; }},
      {"iand", [&](const Tensor& s) { return (1 - s) * r; }}};
  for (const auto& [mode, join] : modes)
    for (const double scale : {1.0, 0.7}) {  // 1: in two passes; 0.7: in one pass
      INFO(mode << ' ' << scale);
      BatchNorm2d norm = seasoned(3), twin = copy_of(norm);
      twin->weight.data().mul_(scale);
      BatchNormNeuron layer(norm, nn::IF(), BatchNormNeuronOptions().residual(mode).scale(scale));
      CHECK(layer->input_names() == nn::Names{"in", "residual"});
      const Tensor found = layer->run({x, r}, 5)[0];
      CHECK(at::equal(found, join(nn::IF()->forward(twin(x.flatten(0, 1)).view(x.sizes())))));
      const Tensor before = layer->state("neuron.v").clone();
      CHECK(
          at::equal(layer->at_rest({x.slice(0, 0, 1), r.slice(0, 0, 1)})[0], join(at::zeros_like(x))[0].unsqueeze(0)));
      CHECK(at::equal(layer->state("neuron.v"), before));
    }
}

TEST_CASE("a BatchNormNeuron is copied, saved, moved, and part of a network") {
  at::manual_seed(7);
  const auto make = [] {
    return nn::Sequential(nn::TimeDistributed(torch::nn::Linear(4, 6)),
                          BatchNormNeuron(BatchNorm1d(6), nn::LIF(nn::LIFOptions().persistent_state(true))),
                          BatchNormNeuron(BatchNorm1d(6), text_neuron()));
  };
  nn::Sequential net = make();
  const Tensor x = 4 * at::rand({5, 3, 4});
  net->forward(x);
  CHECK(net->state().keys() == std::vector<std::string>{"1.neuron.v", "2.neuron.v"});
  const auto copy = clone_of(*net);
  std::stringstream file;
  torch::save(net, file);
  nn::Sequential loaded = make();
  torch::load(loaded, file);
  loaded->set_state("2.neuron.v", net->state("2.neuron.v"));  // not saved
  const Tensor expected = net->forward(x);
  CHECK(at::equal(copy->forward(x), expected));
  CHECK(at::equal(loaded->forward(x), expected));
  net->to(at::kHalf);
  net->reset();
  CHECK(net->forward(x.to(at::kHalf)).scalar_type() == at::kHalf);
  CHECK(net->state("1.neuron.v").scalar_type() == at::kFloat);
  std::ostringstream text;
  text << *BatchNormNeuron(BatchNorm1d(6), nn::IF(), BatchNormNeuronOptions().residual("add").scale(2));
  CHECK(text.str().find("BatchNormNeuron(residual=add, scale=2)") != std::string::npos);
}

TEST_CASE("a call that fails leaves a BatchNormNeuron's running statistics, and so does an empty batch") {
  const Tensor taus = at::full({7}, 2.0, at::kDouble);
  const auto check = [&](auto refusing, auto neuron) {
    const BatchNorm2d norm = seasoned(3), before = copy_of(norm);
    BatchNormNeuron wrong(norm, refusing), layer(norm, neuron);
    CHECK_THAT(message_of([&] { wrong->forward(at::randn({4, 2, 3, 5, 5}, at::kDouble)); }), has_text("tau"));
    check_buffers(norm, before);
    const Tensor nothing = at::randn({4, 0, 3, 5, 5}, at::kDouble).requires_grad_();
    const Tensor spikes = layer->forward(nothing);
    spikes.sum().backward();
    CHECK((spikes.sizes() == nothing.sizes() && nothing.grad().sizes() == nothing.sizes()));
    before->num_batches_tracked.add_(1);
    check_buffers(norm, before);
  };
  check(nn::LIF(nn::LIFOptions().tau(taus)), nn::LIF());
  check(nn::Neuron(nn::NeuronOptions(std::string(leaky)).param("tau", taus)), text_neuron());
}

TEST_CASE("a BatchNormNeuron refuses wrong modules and inputs") {
  const auto starts = [](const std::string& message, const std::string& start) {
    INFO(message);
    CHECK(message.starts_with(start));
  };
  starts(message_of([] { BatchNormNeuron(torch::nn::Linear(2, 2), nn::IF()); }),
         "BatchNormNeuron: norm must be a torch::nn::BatchNorm1d, 2d or 3d, but is ");
  starts(message_of([] { BatchNormNeuron(BatchNorm1d(2), nn::IF(nn::IFOptions().spiking(false))); }),
         "BatchNormNeuron: neuron must be one of neurons.h or neuron.h");
  starts(message_of([] { BatchNormNeuron(BatchNorm1d(2), nn::IF(), BatchNormNeuronOptions().residual("or")); }),
         "BatchNormNeuron: residual must be add, and or iand, or empty for none, but is 'or'");
  starts(message_of([] { BatchNormNeuron(BatchNorm1d(2), nn::IF(), BatchNormNeuronOptions().scale(NAN)); }),
         "BatchNormNeuron: scale must be finite");
  BatchNormNeuron layer(BatchNorm2d(3), nn::IF(), BatchNormNeuronOptions().residual("add"));
  const Tensor x = at::rand({4, 2, 3, 5, 5});
  starts(message_of([&] { layer->run({x}, 4); }), "BatchNormNeuron: takes 2 inputs, but got 1");
  starts(message_of([&] {
           layer->run({x[0], x[0]}, 2);
         }),
         "BatchNormNeuron: x must be [2, B, 3, ...] with 5 to 5 dimensions, but has shape [2, 3, 5, 5]");
  starts(message_of([&] { layer->run({x, x[0]}, 4); }), "BatchNormNeuron: residual must have shape [4, 2, 3, 5, 5]");
  starts(message_of([&] { layer->run({x, x.to(at::kDouble)}, 4); }), "BatchNormNeuron: residual must be Float");
}

}  // namespace spikeforge::test
