// The whole text of one printed cell: its layout and names. printed_cell.cpp compares the bits of all others. After an
// intended change of the printer, SPIKEFORGE_WRITE_GOLDEN=1 in the environment writes the text anew; read the
// difference.
#include "csrc/codegen/cell_printer.h"

#include "tests/catch.h"
#include "tests/codegen/gallery.h"

#include <cstdlib>

namespace spikeforge::test {

TEST_CASE("the printed cell of a neuron is the golden text") {
  const graph::Cell cell = graph::parse(gallery().at("lif"));
  const std::string printed = codegen::print_cell(cell, autodiff::stages_of(cell));
  const std::filesystem::path path = std::filesystem::path(SPIKEFORGE_TEST_GOLDEN) / "lif.txt";
  if (std::getenv("SPIKEFORGE_WRITE_GOLDEN")) std::ofstream(path) << printed;
  INFO(path << "; SPIKEFORGE_WRITE_GOLDEN=1 writes it anew");
  CHECK(printed == read_file(path));
}

}  // namespace spikeforge::test
