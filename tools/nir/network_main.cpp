// The part of spikeforge-nir that needs torch.
#include "tools/nir/command.h"

int main(int argc, char** argv) {
  using namespace spikeforge::nir;
  CLI::App app("Runs NIR files, and writes them as TorchScript.", "spikeforge-nir");
  return run_program(app, {add_run(app), add_to_torchscript(app)}, argc, argv);
}
