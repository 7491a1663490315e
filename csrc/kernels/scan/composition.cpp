#include <spikeforge/autodiff/composition.h>
#include <spikeforge/graph/errors.h>
#include <spikeforge/graph/text.h>
#include <spikeforge/kernels/scan/composition.h>

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
