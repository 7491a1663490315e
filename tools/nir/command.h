// The subcommands of spikeforge-nir. One file each, with a function that adds it to the program.
#pragma once
#include "csrc/nir/limits.h"
#include "csrc/nir/shapes.h"
#include "csrc/nir/write.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::nir {

struct Command {
  CLI::App* app;
  std::function<int()> run;  // returns the exit status; throws Error if a file is rejected

  // The files that it reads: its positional arguments.
  std::string files() const;
};

Command add_check(CLI::App& program);
Command add_convert(CLI::App& program);
Command add_diff(CLI::App& program);
Command add_dot(CLI::App& program);
Command add_info(CLI::App& program);
Command add_run(CLI::App& program);
Command add_to_torchscript(CLI::App& program);

// Reads the command line and runs one command in a separate process. Returns the program's exit status.
int run_program(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv);

// Options of every command that reads a file.
struct ReadOptions {
  Limits limits;
  ShapeRule shapes = ShapeRule::strict;
};
void add_limits(CLI::App& command, ReadOptions& options);
void add_shape_rule(CLI::App& command, ReadOptions& options);

// Options of every command that writes a NIR file.
void add_compression(CLI::App& command, WriteOptions& options);
bool is_nir(std::string_view file);  // by its name

}  // namespace spikeforge::nir
