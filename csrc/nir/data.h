// NIRGraphData: outputs and states of a graph's nodes, recorded while it ran.
#pragma once
#include "csrc/nir/array.h"
#include "csrc/nir/limits.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace spikeforge::nir {

// One value for every step.
struct GriddedData {
  Array data;     // [samples, steps, neurons]
  double dt = 0;  // seconds
};

// Events, [samples, events] each. Samples with fewer events are padded with neuron -1 at time infinity.
struct EventData {
  Array index, time;  // neurons; times in seconds
  std::optional<Array> value;
  std::int64_t neurons = 0;
  double t_max = 0;
};

struct Recording {
  std::string node;        // in a nested graph: graph/node
  std::string observable;  // such as "spikes" or "v"
  std::variant<GriddedData, EventData> data;
};

// Returns the contents of a file that nir.write_data has written, by the names of nodes. Throws Error, like read().
SPIKEFORGE_API std::vector<Recording> read_data(const std::string& file, const Limits& limits = {});

}  // namespace spikeforge::nir
