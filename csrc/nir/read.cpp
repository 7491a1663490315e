#include "csrc/nir/read.h"
#include "csrc/nir/hdf5_tree.h"

namespace spikeforge::nir {

Graph read(const std::string& file, const Limits& limits, Report* report) {
  Report own;
  return read_file(file,
                   [&] { return graph_of(read_tree(ByteSource::open(file), limits), limits, report ? *report : own); });
}

Graph read_to_look(const std::string& file, const Limits& limits, Report& report) {
  return read_file(
      file, [&] { return graph_of(read_tree(ByteSource::open(file), limits), limits, report, Soundness::reported); });
}

Graph read(std::span<const std::byte> bytes, const Limits& limits, Report* report, const std::string& name) {
  Report own;
  return read_file(name,
                   [&] { return graph_of(read_tree(ByteSource(bytes), limits), limits, report ? *report : own); });
}

}  // namespace spikeforge::nir
