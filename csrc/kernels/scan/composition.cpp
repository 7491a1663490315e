#include "csrc/autodiff/composition.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/scan/composition.h"

#include <fmt/format.h>

namespace spikeforge {

const TracedCell& composition_of(const TracedCell& cell) {
  return cell.composition.get<TracedCell>([&] {
    if (cell.states.empty() || cell.states.size() > most_scanned_states)
      throw graph::GraphError(fmt::format("a neuron with 1 to {} states is scanned, but {} has {}", most_scanned_states,
                                          cell.name, cell.states.size()));
    return TracedCell(graph::print(autodiff::composition(cell.graph)));
  });
}

}  // namespace spikeforge
