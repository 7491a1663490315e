// Fuzzes the parser with untrusted neuron text: either it raises an error, or the result is a valid cell whose printed
// text has the same meaning, and which can be differentiated.
#include "csrc/autodiff/stages.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

using namespace spikeforge;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void differentiate(const graph::Cell& cell) {
  try {
    const autodiff::Stages stages = autodiff::stages_of(cell);
    for (const graph::Graph* g : {&stages.prologue, &stages.step, &stages.backward, &stages.epilogue}) verify(*g);
    verify(state_adjoint_map(stages));
  } catch (const graph::GraphError& error) {
    require(std::string_view(error.what()).starts_with("surrogate_gradient cannot be differentiated"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string printed;
  try {
    const graph::Cell cell = graph::parse(text);
    verify(cell);
    printed = print(cell);
    if (cell.graph().size() < 200) differentiate(cell);
  } catch (const graph::TextError& error) {
    require(error.line >= 1 && error.column >= 1);
    return 0;
  }
  require(print(graph::parse(printed)) == printed);
  return 0;
}
