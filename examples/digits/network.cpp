#include "network.h"

#include <fmt/format.h>
#include <spikeforge/nn/neurons.h>
#include <spikeforge/nn/time_distributed.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <filesystem>

#include "error.h"

namespace {

namespace nn = spikeforge::nn;
using namespace torch::nn;

nn::Part neurons(const std::string& kind) {
  if (kind == "if") return nn::IF();
  if (kind == "lif") return nn::LIF();
  if (kind == "plif") return nn::PLIF();  // learns its time constant
  if (kind == "qif") return nn::QIF();
  if (kind == "eif") return nn::EIF();
  return nn::Izhikevich();
}

Conv2d conv3x3(int64_t in, int64_t out, int64_t stride) {
  return Conv2d(Conv2dOptions(in, out, 3).padding(1).stride(stride).bias(false));
}

}  // namespace

NetworkImpl::NetworkImpl(const NetworkOptions& options)
    : options_(options),
      current_(register_module("current", Sequential(conv3x3(1, 32, 1), BatchNorm2d(32)))),
      layers_(register_module("layers", nn::Sequential())) {
  const auto add = [&](const std::string& name, const Sequential& before) {
    layers_->push_back("to " + name, nn::TimeDistributed(before));
    layers_->push_back(name, neurons(options.neuron));
  };
  layers_->push_back("conv 1", neurons(options.neuron));
  add("conv 2", Sequential(conv3x3(32, 64, 2), BatchNorm2d(64)));
  add("linear", Sequential(Flatten(), Linear(LinearOptions(64 * 4 * 4, 128).bias(false)), BatchNorm1d(128)));
  add("output", Sequential(Linear(128, 10)));
}

at::Tensor NetworkImpl::forward(const at::Tensor& images) {
  layers_->reset();
  // The image is a constant current, so the output of the first convolution is the same at every step.
  const at::Tensor current = current_->forward(images);
  return layers_->forward(current.unsqueeze(0).expand({options_.steps, -1, -1, -1, -1})).sum(0);
}

// Checkpoints

namespace {

constexpr const char* kFormat = "spikeforge digits 2";

// torch's reader does not detect a changed byte. This is FNV-1a over the options and all learned tensors.
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
