#include "training.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <fmt/format.h>
#include <spikeforge/nn/monitor.h>
#include <torch/cuda.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "data.h"
#include "error.h"
#include "network.h"
#include "progress.h"
#include "record.h"

namespace {

at::Device find_device(const std::string& name) {
  const bool has_gpu = torch::cuda::is_available();
  if (name == "cuda" && !has_gpu) throw UserError("--device cuda: torch finds no CUDA device here");
  return name != "cpu" && has_gpu ? at::kCUDA : at::kCPU;
}

struct Score {
  double loss = 0, accuracy = 0;
};

double count_right(const at::Tensor& counts, const at::Tensor& labels) {
  return counts.argmax(1).eq(labels).sum().item<double>();
}

Score test(Network network, const Digits& digits) {
  const at::NoGradGuard no_grad;
  network->eval();
  const at::Tensor counts = network->forward(digits.images);
  return {.loss = at::cross_entropy_loss(counts, digits.labels).item<double>(),
          .accuracy = count_right(counts, digits.labels) / static_cast<double>(digits.count())};
}

// Shifts each image by up to one pixel, as data augmentation.
at::Tensor move_a_little(const at::Tensor& images) {
  const int64_t count = images.size(0);
  const at::Tensor windows =
      at::constant_pad_nd(images, {1, 1, 1, 1}).unfold(2, 8, 1).unfold(3, 8, 1);  // 3 x 3 a digit
  const at::Tensor choice = at::randint(0, 9, {count}, at::kLong).to(images.device());
  return windows.reshape({count * 9, 1, 8, 8}).index_select(0, at::arange(count, choice.options()) * 9 + choice);
}

// Reduces the learning rate from its initial value to 0 along a cosine.
void set_learning_rate(torch::optim::Optimizer& optimizer, double highest, double done) {
  for (auto& group : optimizer.param_groups())
    group.options().set_lr(highest * (1 + std::cos(std::numbers::pi * done)) / 2);
}

Score train_epoch(Network network, torch::optim::Optimizer& optimizer, const Digits& digits, const Options& options,
                  int64_t epoch, Progress& progress) {
  network->train();
  const at::Tensor order = at::randperm(digits.count(), at::kLong).to(digits.labels.device());
  const int64_t batches = (digits.count() + options.batch_size - 1) / options.batch_size;
  double loss_sum = 0, right = 0, seen = 0;
  for (int64_t i = 0; i < batches; ++i) {
    const Digits batch = digits.select(order.slice(0, i * options.batch_size, (i + 1) * options.batch_size));
    const double done = static_cast<double>(epoch - 1) + static_cast<double>(i) / static_cast<double>(batches);
    set_learning_rate(optimizer, options.learning_rate, done / static_cast<double>(options.epochs));

    const at::Tensor counts = network->forward(move_a_little(batch.images));
    const at::Tensor loss = at::cross_entropy_loss(counts, batch.labels);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();

    loss_sum += loss.item<double>() * static_cast<double>(batch.count());
    right += count_right(counts, batch.labels);
    seen += static_cast<double>(batch.count());
    progress.batch(epoch, i + 1, batch.count(), loss_sum / seen, right / seen);
  }
  return {.loss = loss_sum / seen, .accuracy = right / seen};
}

std::vector<Epoch> train_epochs(Network network, const Split& digits, const Options& options) {
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(options.learning_rate));
  Progress progress(options.epochs, (digits.train.count() + options.batch_size - 1) / options.batch_size,
                    options.quiet);
  std::vector<Epoch> epochs;
  for (int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    const Score trained = train_epoch(network, optimizer, digits.train, options, epoch, progress);
    const Score tested = test(network, digits.test);
    progress.epoch(epoch, trained.loss, trained.accuracy, tested.accuracy);
    epochs.push_back(
        {epoch, trained.loss, trained.accuracy, tested.loss, tested.accuracy, progress.samples_per_second()});
  }
  return epochs;
}

// Records the spikes of every layer for the first of the held-out digits.
Raster record_raster(Network network, const Digits& digits) {
  const at::NoGradGuard no_grad;
  network->eval();
  const std::vector<std::string> names = {"conv 1", "conv 2", "linear", "output"};
  const spikeforge::nn::Monitor monitor(network->layers(), {"conv 1.out", "conv 2.out", "linear.out", "output.out"});
  network->forward(digits.images.slice(0, 0, 1));
  Raster raster{.image = digits.images[0][0].cpu(), .label = digits.labels[0].item<int64_t>(), .layers = {}};
  for (const std::string& name : names) raster.layers.push_back({name, monitor[name + ".out"].flatten(1).cpu()});
  return raster;
}

struct Setting {
  Split digits;
  at::Device device;
};

Setting prepare(const Options& options) {
  at::set_num_threads(options.threads);
  torch::manual_seed(options.seed);
  const at::Device device = find_device(options.device);
  const Split digits = split(read_digits(options.data));
  return {{.train = digits.train.to(device), .test = digits.test.to(device)}, device};
}

std::string place(at::Device device) {
  return device.is_cuda() ? "the GPU" : fmt::format("the CPU, threads: {}", at::get_num_threads());
}

}  // namespace

bool train(const Options& options) {
  check_writable(options.output);
  const auto [digits, device] = prepare(options);
  if (!options.quiet) {
    fmt::print("{} digits to train with, {} held out; {} neurons, {} steps, on {}\n", digits.train.count(),
               digits.test.count(), options.neuron, options.steps, place(device));
  }
  const auto start = std::chrono::steady_clock::now();
  Network network(NetworkOptions{.neuron = options.neuron, .steps = options.steps});
  network->to(device);
  const std::vector<Epoch> epochs = train_epochs(network, digits, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const std::string checkpoint = options.output + "/network.pt";
  save(network, checkpoint);
  write_learning_curve(options.output + "/learning_curve.csv", epochs);
  write_raster(options.output + "/raster.json", record_raster(network, digits.test));

  Network reloaded = load(checkpoint);
  reloaded->to(device);
  const double accuracy = epochs.back().test_accuracy;
  const double again = test(reloaded, digits.test).accuracy;
  fmt::print("accuracy on the held-out digits: {:.2f} % after {:.1f} s\n", 100 * accuracy, seconds);
  fmt::print("saved to {}, read back: {:.2f} %, {}\n", checkpoint, 100 * again,
             again == accuracy ? "the same" : "NOT THE SAME");
  return again == accuracy;
}

void evaluate(const Options& options) {
  Network network = load(options.load);
  const auto [digits, device] = prepare(options);
  network->to(device);
  fmt::print("accuracy on the held-out digits: {:.2f} % ({}, {} neurons, {} steps)\n",
             100 * test(network, digits.test).accuracy, options.load, network->options().neuron,
             network->options().steps);
}
