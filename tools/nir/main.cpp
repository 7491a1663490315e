// Shows, checks, compares, draws, converts and runs NIR files.
#include "tools/nir/command.h"

#include <fmt/format.h>

#include <climits>
#include <cstdio>
#include <string>
#include <string_view>

#include <unistd.h>

namespace spikeforge::nir {
namespace {

// Commands that need torch, which is slow to load, are in a separate program in the same folder.
int call_network_program(char** argv) {
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  std::string program(self, length > 0 ? static_cast<std::size_t>(length) : 0);
  program = program.substr(0, program.rfind('/') + 1) + "spikeforge-nir-network";
  ::execv(program.c_str(), argv);
  fmt::print(stderr, "spikeforge-nir: {} cannot be run\n", program);
  return 1;
}

bool needs_torch(int argc, char** argv) {
  if (argc < 2) return false;
  const std::string_view command = argv[1];
  if (command == "run") return true;
  if (command == "convert")  // not from TorchScript, which convert reports
    for (int i = 3; i < argc; ++i)
      if (std::string_view(argv[i]).ends_with(".pt")) return true;
  return false;
}

}  // namespace
}  // namespace spikeforge::nir

// 0: done. 1: a file is rejected, with one line on standard error, or files differ. 2: the command line is wrong.
int main(int argc, char** argv) {
  using namespace spikeforge::nir;
  if (needs_torch(argc, argv)) return call_network_program(argv);
  CLI::App app("Shows, checks, compares, draws, converts and runs NIR files.", "spikeforge-nir");
  app.add_subcommand("run", "Run a network over an input; \"run --help\" lists its options");
  return run_program(app, {add_info(app), add_check(app), add_diff(app), add_dot(app), add_convert(app)}, argc, argv);
}
