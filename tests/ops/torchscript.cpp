// Loads and trains models, which Python has scripted, without Python.
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/catch.h"
#include "tests/ops/calls.h"

namespace spikeforge::test {
namespace {

// The files that tests/python/export_torchscript.py writes; that file describes their contents. std::filesystem is not
// used, because libtorch.so exports an older copy of it, whose remove_all() jumps to a null pointer.
class ExportedFolder {
 public:
  ExportedFolder() {
    REQUIRE(::mkdtemp(path_.data()) != nullptr);
    std::string command =
        "SPIKEFORGE_LIBRARY='" SPIKEFORGE_TEST_LIBRARY "' '" SPIKEFORGE_TEST_PYTHON "' '" SPIKEFORGE_TEST_EXPORT "' '";
    command += path_ + "'";
    INFO(command);
    REQUIRE(std::system(command.c_str()) == 0);
  }
  ~ExportedFolder() {
    for (const char* name : {"function", "module", "traced", "values"}) ::unlink(file(name).c_str());
    ::rmdir(path_.c_str());
  }
  ExportedFolder(const ExportedFolder&) = delete;
  ExportedFolder& operator=(const ExportedFolder&) = delete;

  torch::jit::Module load(const std::string& name) const { return torch::jit::load(file(name)); }

 private:
  std::string file(const std::string& name) const { return path_ + "/" + name + ".pt"; }

  std::string path_ = "/tmp/spikeforge_torchscript_XXXXXX";
};

// The interpreter optimises a function after some calls.
constexpr int n_calls = 4;

}  // namespace

TEST_CASE("what Python scripted runs in C++, with the values and the gradient that Python saw") {
  const ExportedFolder exported;
  const torch::jit::Module values = exported.load("values");
  const auto value = [&](const char* name) { return values.attr(name).toTensor(); };
  const Tensor x = value("x");
  REQUIRE(value("spikes").count_nonzero().item<int64_t>() > 0);
  REQUIRE(value("grad_w").count_nonzero().item<int64_t>() > 0);

  torch::jit::Module function = exported.load("function"), network = exported.load("module");
  for (int i = 0; i < n_calls; ++i) {
    INFO("call " << i + 1);
    const auto results = function.forward({x}).toTupleRef().elements().vec();
    REQUIRE(results.size() == 2);
    REQUIRE(results[0].toTensor().equal(value("spikes")));
    REQUIRE(results[1].toTensor().equal(value("v")));

    const Tensor w = network.attr("w").toTensor();
    REQUIRE(w.requires_grad());
    w.mutable_grad() = Tensor();
    const Tensor y = network.forward({x}).toTensor();
    REQUIRE(y.allclose(value("y"), 1e-5, 1e-5));
    y.sum().backward();
    REQUIRE(w.grad().defined());
    REQUIRE(w.grad().allclose(value("grad_w"), 1e-4, 1e-4));

    // A 0-dimensional parameter is a tensor and has a gradient. The input makes the first layer fire.
    const Tensor tau = network.attr("tau").toTensor();
    tau.mutable_grad() = Tensor();
    network.forward({x.mul(20)}).toTensor().sum().backward();
    REQUIRE(tau.grad().defined());
    REQUIRE(tau.grad().item<float>() != 0);
  }
}

TEST_CASE("a neuron written as text travels in the saved model, with its gradient") {
  const ExportedFolder exported;
  const torch::jit::Module values = exported.load("values");
  const auto value = [&](const char* name) { return values.attr(name).toTensor(); };
  REQUIRE(value("traced_spikes").count_nonzero().item<int64_t>() > 0);
  REQUIRE(value("grad_leak").count_nonzero().item<int64_t>() > 0);

  torch::jit::Module network = exported.load("traced");
  for (int i = 0; i < n_calls; ++i) {
    INFO("call " << i + 1);
    const auto results = network.forward({value("x")}).toTupleRef().elements().vec();
    REQUIRE(results.size() == 2);
    REQUIRE(results[0].toTensor().equal(value("traced_spikes")));
    REQUIRE(results[1].toTensor().equal(value("tired")));
    const Tensor leak = network.attr("leak").toTensor();
    leak.mutable_grad() = Tensor();
    results[1].toTensor().sum().backward();
    REQUIRE(leak.grad().defined());
    REQUIRE(leak.grad().equal(value("grad_leak")));
  }
}

}  // namespace spikeforge::test
