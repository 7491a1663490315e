// The whole text of three printed cells. Where a change of the printer is meant, SPIKEFORGE_WRITE_GOLDEN=1 in the
// environment writes them anew; the difference is then read.
#include "csrc/codegen/cell_printer.h"

#include "tests/catch.h"
#include "tests/codegen/gallery.h"

#include <cstdlib>

namespace spikeforge::test {

TEST_CASE("the printed cells of three neurons are the golden texts") {
  const auto texts = gallery();
  for (const std::string name : {"lif", "complicated_lif", "morris_lecar"}) {
    const graph::Cell cell = graph::parse(texts.at(name));
    const std::string printed = codegen::print_cell(cell, autodiff::stages_of(cell));
    const std::filesystem::path path = std::filesystem::path(SPIKEFORGE_TEST_GOLDEN) / (name + ".txt");
    if (std::getenv("SPIKEFORGE_WRITE_GOLDEN")) std::ofstream(path) << printed;
    INFO(path << "; SPIKEFORGE_WRITE_GOLDEN=1 writes it anew");
    CHECK(printed == read_file(path));
  }
}

}  // namespace spikeforge::test
