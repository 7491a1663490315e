// convert FILE.nir OUT.pt
#include "tools/nir/network_options.h"

#include "csrc/nir/error.h"
#include "csrc/nir/network/torchscript.h"
#include "csrc/nir/replacement_file.h"

#include <torch/csrc/jit/api/module.h>

#include <memory>

namespace spikeforge::nir {
namespace {

struct TorchScriptOptions : NetworkOptions {
  std::string to;
};

int write_torchscript(const TorchScriptOptions& options) {
  if (!options.to.ends_with(".pt")) throw Error(options.to, "", "", "expected a file that ends in .pt");
  const torch::jit::Module script = options.torchscript(options.read_graph());
  try {
    ReplacementFile file(options.to);
    script.save(file.path());
    file.replace();
  } catch (const c10::Error&) {
    throw Error(options.to, "", "", "cannot be written");
  } catch (const std::exception& error) {
    throw Error(options.to, "", "", error.what());
  }
  return 0;
}

}  // namespace

Command add_to_torchscript(CLI::App& program) {
  const auto options = std::make_shared<TorchScriptOptions>();
  CLI::App* const app = program.add_subcommand(
      "convert", "Write a network as TorchScript, which runs where the operator library is loaded, in C++ and Python");
  app->add_option("file", options->file, "A NIR file of any version")->required();
  app->add_option("to", options->to, "The .pt file to write; an existing file is replaced when the new one is complete")
      ->required();
  add_network_options(*app, *options);
  return {app, [options] { return write_torchscript(*options); }};
}

}  // namespace spikeforge::nir
