#include "csrc/nir/data.h"
#include "csrc/nir/hdf5_tree.h"
#include "csrc/nir/refuse.h"

#include <cmath>

namespace spikeforge::nir {
namespace {

constexpr const char* attributes[] = {"dt", "n_neurons", "t_max"};

class DataReader {
 public:
  explicit DataReader(const Limits& limits) : limits_(limits) {}

  void graph(const Group& group, const std::string& name, int depth) {
    const std::string shown = name.empty() ? "/" : name;
    if (depth > limits_.depth) refuse(shown, "", "it is nested more than {} levels deep", limits_.depth);
    for (const Member& node : group_in(group, "nodes", shown).members) {
      const std::string inner = in_node(name, node.name);
      const Group* content = std::get_if<Group>(&node.value);
      if (!content) throw Error(inner, "", "expected a group, but it is a dataset");
      if (content->find("nodes")) {
        graph(*content, inner, depth + 1);
        continue;
      }
      for (const Member& observable : group_in(*content, "observables", inner).members) {
        const Group* data = std::get_if<Group>(&observable.value);
        if (!data) throw Error(inner, observable.name, "expected a group, but it is a dataset");
        recordings.push_back({inner, observable.name, data_of(*data, inner, observable.name)});
      }
    }
  }

  std::vector<Recording> recordings;

 private:
  static const Group& group_in(const Group& group, const char* member, const std::string& node) {
    const Member* found = group.find(member);
    const Group* inner = found ? std::get_if<Group>(&found->value) : nullptr;
    if (!inner) throw Error(node, member, "is missing: this file has no NIRGraphData");
    return *inner;
  }

  static const Array& array_in(const Group& group, const char* member, const std::string& node,
                               const std::string& field) {
    const Member* found = group.find(member);
    const Array* array = found ? std::get_if<Array>(&found->value) : nullptr;
    if (!array) refuse(node, field, "it has no array {}", member);
    return *array;
  }
  static double number_in(const Group& group, const char* member, const std::string& node, const std::string& field) {
    const Array& array = array_in(group, member, node, field);
    if (array.count() != 1 || !std::isfinite(array.at(0)) || array.at(0) < 0)
      refuse(node, field, "{} must be a finite number >= 0", member);
    return array.at(0);
  }

  static std::variant<GriddedData, EventData> data_of(const Group& group, const std::string& node,
                                                      const std::string& field) {
    if (group.find("data")) {
      GriddedData gridded{array_in(group, "data", node, field), number_in(group, "dt", node, field)};
      if (gridded.data.shape().size() != 3)
        refuse(node, field, "expected data of shape [samples, steps, neurons], but it is {}",
               text_of(gridded.data.shape()));
      return gridded;
    }
    EventData events{array_in(group, "idx", node, field),
                     array_in(group, "time", node, field),
                     {},
                     0,
                     number_in(group, "t_max", node, field)};
    const double neurons = number_in(group, "n_neurons", node, field);
    if (neurons > 0x1p53) throw Error(node, field, "it has too many neurons");
    events.neurons = static_cast<std::int64_t>(neurons);
    if (group.find("value")) events.value = array_in(group, "value", node, field);
    const Shape& shape = events.index.shape();
    if (shape.size() != 2 || events.time.shape() != shape || (events.value && events.value->shape() != shape))
      refuse(node, field, "expected idx, time and value of one shape [samples, events], but idx has {}",
             text_of(shape));
    for (std::int64_t i = 0; i < events.index.count(); ++i)
      if (const double index = events.index.at(i); !(index >= -1 && index < neurons))
        refuse(node, field, "there is no neuron {} among {}", index, neurons);
    return events;
  }

  const Limits& limits_;
};

}  // namespace

std::vector<Recording> read_data(const std::string& file, const Limits& limits) {
  return read_file(file, [&] {
    DataReader reader(limits);
    reader.graph(read_tree(ByteSource::open(file), limits, attributes), "", 1);
    return std::move(reader.recordings);
  });
}

}  // namespace spikeforge::nir
