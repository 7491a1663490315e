// TorchScript files of strangers, as a program of one's own loads them. tests/examples/test_deploy.py has the others.
#include "csrc/torchscript/screened.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/catch.h"

namespace spikeforge::test {

// By their counts of changes spikeforge knows whether a matrix that it has read is the same.
TEST_CASE("tensors of one memory count their changes together") {
  std::string path = "/tmp/spikeforge_screened_XXXXXX";
  const int file = ::mkstemp(path.data());
  REQUIRE(file >= 0);
  ::close(file);

  torch::jit::Module net("Net");
  const at::Tensor columns = at::zeros({4}, at::kInt);
  net.register_buffer("columns", columns);
  net.register_buffer("same", columns.detach().slice(0, 1, 3));
  net.define("def forward(self, x):\n    return x + self.columns\n");
  net.save(path);

  const torch::jit::Module loaded = load_screened(path);
  ::unlink(path.c_str());
  const at::Tensor own = loaded.attr("columns").toTensor(), other = loaded.attr("same").toTensor();
  REQUIRE(own.storage().is_alias_of(other.storage()));
  const auto before = own._version();
  other.fill_(1);
  CHECK(own._version() > before);
  CHECK(own.sum().item<int>() == 2);
}

}  // namespace spikeforge::test
