#include "csrc/torchscript/screened.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

namespace spikeforge {

torch::jit::Module load_screened(const std::string& file, c10::Device device, const std::vector<std::string>&) {
  return torch::jit::load(file, device);
}

}  // namespace spikeforge
