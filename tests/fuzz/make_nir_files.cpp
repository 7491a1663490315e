// Writes the initial corpus of fuzz_nir: a file with every node, files of one type each, and compressed files.
#include "tests/nir/every_node.h"

#include "csrc/nir/write.h"

#include <filesystem>
#include <string>

int main(int argc, char** argv) {
  using namespace spikeforge;
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  std::filesystem::create_directories(folder);
  const nir::Graph all = test::every_node();
  write(all, folder / "all.nir");
  for (const nir::NamedNode& node : all.nodes) {
    nir::Graph one;
    one.nodes = {node};
    one.nodes[0].node.metadata = {};
    if (node.name == "affine" || node.name == "inner" || node.name == "if" || node.name == "input")
      write(one, folder / (node.name + ".nir"));
  }
  nir::Graph compressed;
  compressed.nodes = {{"w", {nir::Linear{nir::Array::full({40, 30}, 0.5)}, {}}}};
  write(compressed, folder / "compressed.nir", {.compression = 9});
}
