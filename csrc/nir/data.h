// NIRGraphData: what nodes of a graph gave, or held, while it ran.
#pragma once
#include "csrc/nir/array.h"
#include "csrc/nir/limits.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace spikeforge::nir {

// Values in every step.
struct GriddedData {
  Array data;     // [samples, steps, neurons]
  double dt = 0;  // seconds
};

// Events, [samples, events] each. Samples with fewer events than others end in neuron -1 at infinity.
struct EventData {
  Array index, time;  // the neuron; seconds
  std::optional<Array> value;
  std::int64_t neurons = 0;
  double t_max = 0;
};

struct Recording {
  std::string node;        // inside a nested graph graph/node
  std::string observable;  // as spikes, or v
  std::variant<GriddedData, EventData> data;
};

// The contents of a file written by nir.write_data, by the names of nodes. Throws Error, as read() does.
SPIKEFORGE_API std::vector<Recording> read_data(const std::string& file, const Limits& limits = {});

}  // namespace spikeforge::nir
