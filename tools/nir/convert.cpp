#include "tools/nir/command.h"

#include "csrc/nir/error.h"
#include "csrc/nir/read.h"
#include "csrc/nir/write.h"

#include <memory>

namespace spikeforge::nir {
namespace {

struct ConvertOptions : ReadOptions {
  std::string from, to;
  WriteOptions write;
};

int convert(const ConvertOptions& options) {
  for (const std::string& file : {options.from, options.to})
    if (!is_nir(file)) throw Error(file, "", "", "expected a file that ends in .nir, or in .pt to write TorchScript");
  write(read(options.from, options.limits), options.to, options.write);
  return 0;
}

}  // namespace

Command add_convert(CLI::App& program) {
  const auto options = std::make_shared<ConvertOptions>();
  CLI::App* const app = program.add_subcommand(
      "convert",
      "Write a file of any version in the newest layout, or as TorchScript (a.nir a.pt --help lists its options)");
  app->add_option("from", options->from, "A NIR file of any version")->required();
  app->add_option("to", options->to, "The file to write; an existing file is replaced when the new one is complete")
      ->required();
  add_compression(*app, options->write);
  add_limits(*app, *options);
  return {app, [options] { return convert(*options); }};
}

}  // namespace spikeforge::nir
