// A program outside the project: it calls an operator by its C++ function and by its name, and trains one step.
#include <spikeforge/ops/neuron.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "consumer: %s\n", what);
  std::exit(1);
}

at::Tensor lif_by_name(const at::Tensor& x) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("spikeforge::lif", "");
  torch::jit::Stack stack;
  for (const c10::Argument& argument : op.schema().arguments()) {
    stack.push_back(argument.name() == "x" ? c10::IValue(x) : argument.default_value().value());
  }
  op.callBoxed(&stack);
  return stack.at(0).toTensor();
}

void train_one_step() {
  torch::nn::Linear layer(16, 8);
  torch::optim::SGD optimizer(layer->parameters(), /*lr=*/0.1);
  const at::Tensor before = layer->weight.detach().clone();

  const at::Tensor x = torch::rand({/*T=*/10, /*batch=*/4, 16});
  const auto [spikes, v] = spikeforge::lif(layer->forward(x), {}, {.tau = 1.5, .v_threshold = 0.25});
  require(spikes.sizes() == at::IntArrayRef({10, 4, 8}), "spikes must be [10, 4, 8]");
  torch::mse_loss(spikes.mean(0), torch::ones({4, 8})).backward();

  const at::Tensor gradient = layer->weight.grad();
  require(gradient.defined() && gradient.isfinite().all().item<bool>(), "the gradient must be finite");
  require(gradient.abs().sum().item<double>() > 0, "the gradient must not be zero");
  optimizer.step();
  require(!torch::equal(layer->weight.detach(), before), "the step must change the weight");
}

}  // namespace

int main() {
  torch::manual_seed(0);
  train_one_step();

  const at::Tensor x = torch::rand({10, 32}) * 2;
  require(torch::equal(lif_by_name(x), std::get<0>(spikeforge::lif(x))), "by name and by function must agree");
  std::puts("consumer: ok");
}
