#include "tools/nir/command.h"

#include "csrc/base/printable.h"
#include "csrc/nir/error.h"
#include "csrc/nir/read.h"
#include "csrc/nir/validate.h"

#include <fmt/format.h>

#include <memory>

namespace spikeforge::nir {
namespace {

struct CheckOptions : ReadOptions {
  std::string file;
};

int check(const CheckOptions& options) {
  Report report;
  const Graph graph = read(options.file, options.limits, &report);
  try {
    infer_shapes(graph, options.shapes, &report);
  } catch (const Error& error) {
    throw error.in_file(options.file);
  }
  std::string verdict = report.warnings.empty() ? "good" : "good, with warnings";
  if (const auto reason = why_not_runnable(graph))
    verdict = fmt::format("sound, but it cannot be run: {}", printable(reason->what()));
  fmt::print("{}: {}\n", printable(options.file), verdict);
  for (const std::string& warning : report.warnings) fmt::print("  warning: {}\n", spikeforge::printable(warning));
  return 0;
}

}  // namespace

Command add_check(CLI::App& program) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* const app = program.add_subcommand("check", "Read a file and check the shapes along every edge");
  app->add_option("file", options->file, "A NIR file")->required();
  add_shape_rule(*app, *options);
  add_limits(*app, *options);
  return {app, [options] { return check(*options); }};
}

}  // namespace spikeforge::nir
