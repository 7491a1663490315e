#include "csrc/autodiff/coefficients.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/multiply_adds.h"

#include <cstddef>

namespace spikeforge::autodiff {

std::vector<graph::Id> coefficients(const Stages& stages) {
  const graph::Graph& backward = stages.backward;
  const graph::MultiplyAdds multiply_adds(backward);
  const graph::Dependence depends(backward);
  const std::size_t at_step = stages.inputs + stages.states, known = at_step + stages.hoisted;
  const auto is_of_gradients = [&](graph::Id id) { return depends.beyond(id, 0, known); };
  const auto is_of_the_step = [&](graph::Id id) {
    return !is_of_gradients(id) && depends.beyond(id, at_step, stages.hoisted);
  };
  const std::vector<bool> live = multiply_adds.live_nodes(backward, backward.results());
  std::vector<bool> is_read(backward.size());
  for (graph::Id id = 0; id < backward.size(); ++id)
    if (live[id] && is_of_gradients(id))
      for (const graph::Id source : multiply_adds.sources(backward, id)) is_read[source] = true;
  for (const graph::Id result : backward.results()) is_read[result] = true;
  std::vector<graph::Id> found;
  for (graph::Id id = 0; id < backward.size(); ++id)
    if (is_read[id] && is_of_the_step(id)) found.push_back(id);
  return found;
}

}  // namespace spikeforge::autodiff
