#include "network.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <spikeforge/ops/neuron.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <filesystem>

#include "error.h"

NeuronImpl::NeuronImpl(std::string kind) : kind_(std::move(kind)) {
  if (kind_ == "plif") w_ = register_parameter("w", at::zeros({}));
}

at::Tensor NeuronImpl::forward(const at::Tensor& current) {
  if (kind_ == "if") return std::get<0>(spikeforge::integrate_and_fire(current));
  if (kind_ == "lif") return std::get<0>(spikeforge::lif(current, {}, {.tau = 2.0}));
  if (kind_ == "plif") return std::get<0>(spikeforge::plif(current, w_));
  if (kind_ == "qif") return std::get<0>(spikeforge::qif(current));
  if (kind_ == "eif") return std::get<0>(spikeforge::eif(current));
  return std::get<0>(spikeforge::izhikevich(current));
}

namespace {

using torch::nn::BatchNorm1dOptions;
using torch::nn::Conv2dOptions;

// Layers without time see the steps as more samples: [T, batch, ...] -> [T * batch, ...] -> layer -> [T, batch, ...].
template <class Layer>
at::Tensor at_every_step(const at::Tensor& x, Layer layer) {
  return layer(x.flatten(0, 1)).unflatten(0, {x.size(0), x.size(1)});
}

}  // namespace

NetworkImpl::NetworkImpl(const NetworkOptions& options)
    : options_(options),
      conv1_(register_module("conv1", torch::nn::Conv2d(Conv2dOptions(1, 32, 3).padding(1).bias(false)))),
      conv2_(register_module("conv2", torch::nn::Conv2d(Conv2dOptions(32, 64, 3).padding(1).stride(2).bias(false)))),
      linear1_(register_module("linear1", torch::nn::Linear(torch::nn::LinearOptions(64 * 4 * 4, 128).bias(false)))),
      linear2_(register_module("linear2", torch::nn::Linear(128, 10))),
      norm1_(register_module("norm1", torch::nn::BatchNorm2d(32))),
      norm2_(register_module("norm2", torch::nn::BatchNorm2d(64))),
      norm3_(register_module("norm3", torch::nn::BatchNorm1d(128))),
      neuron1_(register_module("neuron1", Neuron(options.neuron))),
      neuron2_(register_module("neuron2", Neuron(options.neuron))),
      neuron3_(register_module("neuron3", Neuron(options.neuron))),
      neuron4_(register_module("neuron4", Neuron(options.neuron))) {}

std::vector<at::Tensor> NetworkImpl::spikes(const at::Tensor& images) {
  // The image is a constant current, so the first convolution gives the same at every step.
  const at::Tensor current = norm1_(conv1_(images));
  const at::Tensor s1 = neuron1_(current.unsqueeze(0).expand({options_.steps, -1, -1, -1, -1}));
  const at::Tensor s2 = neuron2_(at_every_step(s1, [&](const at::Tensor& x) { return norm2_(conv2_(x)); }));
  const at::Tensor s3 =
      neuron3_(at_every_step(s2, [&](const at::Tensor& x) { return norm3_(linear1_(x.flatten(1))); }));
  const at::Tensor s4 = neuron4_(at_every_step(s3, [&](const at::Tensor& x) { return linear2_(x); }));
  return {s1, s2, s3, s4};
}

at::Tensor NetworkImpl::forward(const at::Tensor& images) { return spikes(images).back().sum(0); }

// Checkpoints

namespace {

constexpr const char* kFormat = "spikeforge digits 1";

// torch's own reader does not notice a changed byte. This is FNV-1a over the options and all that was learned.
int64_t checksum(const Network& network) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  };
  const NetworkOptions& options = network->options();
  add(options.neuron.data(), options.neuron.size());
  add(&options.steps, sizeof options.steps);
  for (const auto& tensors : {network->parameters(), network->buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor values = tensor.detach().cpu().contiguous();
      add(values.const_data_ptr(), values.nbytes());
    }
  }
  return static_cast<int64_t>(hash);
}

// torch adds a backtrace and advice.
std::string first_sentence(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, std::min(text.find('\n'), text.find(". ")));
}

c10::IValue read(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value;
}

Network read_network(torch::serialize::InputArchive& archive) {
  TORCH_CHECK(read(archive, "format").toStringRef() == kFormat, "unknown format");
  const NetworkOptions options{.neuron = read(archive, "neuron").toStringRef(),
                               .steps = read(archive, "steps").toInt()};
  Network network(options);
  torch::serialize::InputArchive parameters;
  archive.read("network", parameters);
  network->load(parameters);
  TORCH_CHECK(read(archive, "checksum").toInt() == checksum(network), "its checksum is wrong");
  return network;
}

}  // namespace

void save(Network network, const std::string& path) {
  torch::serialize::OutputArchive archive, parameters;
  network->save(parameters);
  archive.write("format", c10::IValue(kFormat));
  archive.write("neuron", c10::IValue(network->options().neuron));
  archive.write("steps", c10::IValue(network->options().steps));
  archive.write("checksum", c10::IValue(checksum(network)));
  archive.write("network", parameters);
  try {
    archive.save_to(path);
  } catch (const std::exception& error) {
    throw UserError(fmt::format("cannot write {}: {}", path, first_sentence(error)));
  }
}

Network load(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) throw UserError(fmt::format("cannot read {}: no such file", path));
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(path, at::kCPU);
    return read_network(archive);
  } catch (const std::exception& error) {
    throw UserError(fmt::format("{} is damaged, or not a checkpoint of this program: {}", path, first_sentence(error)));
  }
}
