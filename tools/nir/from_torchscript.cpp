// convert FILE.pt OUT.nir
#include "tools/nir/command.h"

#include "csrc/nir/error.h"
#include "csrc/nir/network/torchscript.h"
#include "csrc/nir/write.h"

#include <memory>

namespace spikeforge::nir {
namespace {

struct BackOptions : ReadOptions {
  std::string file, to;
  WriteOptions write;
};

int write_nir(const BackOptions& options) {
  if (!is_nir(options.to)) throw Error(options.to, "", "", "expected a file that ends in .nir");
  write(from_torchscript(options.file, options.limits), options.to, options.write);
  return 0;
}

}  // namespace

Command add_from_torchscript(CLI::App& program) {
  const auto options = std::make_shared<BackOptions>();
  CLI::App* const app = program.add_subcommand(
      "convert", "Write what was converted from NIR to TorchScript as NIR again, with the parameters it has now");
  app->add_option("file", options->file, "A .pt file that convert wrote, or that was saved again since")->required();
  app->add_option("to", options->to, "The NIR file to write; an old one is replaced when the new one is whole")
      ->required();
  add_compression(*app, options->write);
  add_limits(*app, *options);
  return {app, [options] { return write_nir(*options); }};
}

}  // namespace spikeforge::nir
