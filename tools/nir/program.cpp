#include "tools/nir/command.h"

#include "csrc/base/own_process.h"
#include "csrc/base/printable.h"
#include "csrc/nir/error.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>

namespace spikeforge::nir {

void add_limits(CLI::App& command, ReadOptions& options) {
  command.add_option("--max-depth", options.limits.depth, "Levels of graphs within graphs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      .add_option("--max-bytes", options.limits.bytes,
                  "Memory for arrays and text, such as 500MB or 4GiB; by default 2GiB")
      ->transform(CLI::AsSizeValue(false));
}

void add_shape_rule(CLI::App& command, ReadOptions& options) {
  static const std::map<std::string, ShapeRule> rules = {{"strict", ShapeRule::strict},
                                                         {"tolerant", ShapeRule::tolerant}};
  command.add_option("--shapes", options.shapes, "strict, or tolerant: shapes are inferred, and parameters broadcast")
      ->transform(CLI::CheckedTransformer(rules).description(""));
}

void add_compression(CLI::App& command, WriteOptions& options) {
  command.add_option("--compression", options.compression, "Level of deflate, 0 to 9; 0: none")
      ->check(CLI::Range(0, 9))
      ->capture_default_str();
}

bool is_nir(std::string_view file) {
  return file.ends_with(".nir") || file.ends_with(".h5") || file.ends_with(".hdf5");
}

std::string Command::files() const {
  std::string names;
  for (const CLI::Option* option : app->get_options())
    if (option->get_positional() && option->get_name() != "to" && option->count())
      names += (names.empty() ? "" : ", ") + printable(option->as<std::string>());
  return names;
}

namespace {

int fail(int status, const std::string& message) {
  fmt::print(stderr, "spikeforge-nir: {}\n", spikeforge::printable(message, Lines::several));
  return status;
}

int run(const Command& command) {
  try {
    const int status = command.run();
    if (std::fflush(stdout) != 0) return fail(1, "standard output cannot be written");
    return status;
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}

}  // namespace

int run_program(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv) {
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(2, fmt::format("{} (--help lists the options)", error.what()));
  }
  for (const Command& command : commands)
    if (command.app->parsed())  // libhdf5 has crashed on damaged files
      return in_own_process("spikeforge-nir", command.files() + ": reading it crashed", [&] { return run(command); });
  return 2;
}

}  // namespace spikeforge::nir
