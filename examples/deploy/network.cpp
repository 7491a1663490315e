#include "network.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>

#include "error.h"

namespace {

at::Tensor first_tensor(const torch::jit::IValue& result) {
  if (result.isTensor()) return result.toTensor();
  if (result.isTuple() && !result.toTupleRef().elements().empty())
    return first_tensor(result.toTupleRef().elements()[0]);
  throw UserError("the network gives no tensor");
}

Network load_torchscript(const std::string& path, c10::Device device) {
  auto module = std::make_shared<torch::jit::Module>(torch::jit::load(path, device));
  const auto forward = module->find_method("forward");
  if (!forward || forward->num_inputs() != 2)
    throw UserError(fmt::format("{}: its forward does not take one tensor", path));
  if (module->hasattr("training")) module->eval();  // a frozen one has no mode
  const bool has_reset = module->find_method("reset").has_value();
  return {.run = [module](const at::Tensor& x) { return first_tensor(module->forward({x})); },
          .reset =
              [module, has_reset] {
                if (has_reset) module->get_method("reset")({});
              }};
}

// Captures standard error during its lifetime: a package prints the reason of a failure there.
class Errors {
 public:
  Errors() : before_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Errors() { std::cerr.rdbuf(before_); }
  Errors(const Errors&) = delete;
  Errors& operator=(const Errors&) = delete;
  std::string first_line() const { return text_.str().substr(0, text_.str().find('\n')); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

Network load_package(const std::string& path, c10::Device device) {
  ::setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 1);  // or other shapes than it was compiled for are read out of bounds
  auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(
      path, "model", /*run_single_threaded=*/false, /*num_runners=*/1, device.is_cuda() ? device.index() : -1);
  const std::string compiled_for = loader->get_metadata()["AOTI_DEVICE_KEY"];
  if (!compiled_for.empty() && compiled_for != c10::DeviceTypeName(device.type(), /*lower_case=*/true))
    throw UserError(fmt::format("{} is compiled for {}: say --device {}", path, compiled_for, compiled_for));
  return {.run =
              [loader](const at::Tensor& x) {
                const Errors errors;
                try {
                  return loader->run({x}).at(0);
                } catch (const std::exception& error) {
                  const std::string cause = errors.first_line();
                  throw UserError(cause.empty() ? one_line(error.what()) : cause);
                }
              },
          .reset = [] {}};
}

}  // namespace

std::string one_line(const std::string& message) {
  // The interpreter prints the positions in the source; the last line that names an error has the reason.
  std::istringstream lines(message);
  std::string first, found;
  for (std::string line; std::getline(lines, line);) {
    if (first.empty()) first = line;
    for (const char* kind : {"RuntimeError: ", "ValueError: ", "TypeError: ", "AssertionError: ", "IndexError: "})
      if (const std::size_t at = line.find(kind); at != std::string::npos && at < 24)
        found = line.substr(at + std::string(kind).size());
  }
  return found.empty() ? first : found;
}

bool is_package(const std::string& path) { return path.ends_with(".pt2"); }

Network load_network(const std::string& path, c10::Device device) {
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path))  // opening a pipe would wait
    throw UserError(fmt::format("cannot load {}: it is not a regular file", path));
  try {
    return is_package(path) ? load_package(path, device) : load_torchscript(path, device);
  } catch (const c10::Error& error) {
    throw UserError(fmt::format("cannot load {}: {}", path, one_line(error.what_without_backtrace())));
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw UserError(fmt::format("cannot load {}: {}", path, one_line(error.what())));
  }
}
