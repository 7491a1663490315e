// The part of spikeforge-nir that needs torch.
#include "tools/nir/command.h"

#include <algorithm>
#include <span>
#include <string_view>

namespace {

// convert a.pt b, not convert a b.pt.
bool is_way_back(std::span<char*> arguments) {
  const auto is_nir = [](std::string_view word) { return spikeforge::nir::is_nir(word); };
  const auto is_script = [](std::string_view word) { return word.ends_with(".pt"); };
  const auto script = std::find_if(arguments.begin(), arguments.end(), is_script);
  if (std::any_of(arguments.begin(), script, is_nir) || script == arguments.end() || script + 1 == arguments.end())
    return false;
  return script[1][0] != '-' || std::any_of(script + 1, arguments.end(), is_nir);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace spikeforge::nir;
  CLI::App app("Runs NIR files, and writes them as TorchScript.", "spikeforge-nir");
  const bool is_back = is_way_back(std::span(argv, static_cast<std::size_t>(argc)));
  return run_program(app, {add_run(app), is_back ? add_from_torchscript(app) : add_to_torchscript(app)}, argc, argv);
}
