// Options of the commands that load a network from a file.
#pragma once
#include "tools/nir/command.h"

#include "csrc/nir/network/to_module.h"
#include "csrc/nir/network/torchscript.h"

namespace spikeforge::nir {

struct NetworkOptions : ReadOptions {
  std::string file;
  ModuleOptions module;

  Graph read_graph() const;
  // Errors name the file.
  nn::Composite network(const Graph& graph) const;
  torch::jit::Module torchscript(const Graph& graph) const;

 private:
  template <class Function> auto made_of(Function function) const;
};

void add_network_options(CLI::App& command, NetworkOptions& options);

}  // namespace spikeforge::nir
