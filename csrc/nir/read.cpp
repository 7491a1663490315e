#include "csrc/nir/read.h"
#include "csrc/nir/byte_source.h"
#include "csrc/nir/error.h"
#include "csrc/nir/hdf5_tree.h"

#include <stdexcept>

namespace spikeforge::nir {
namespace {

template <class Open>
Graph read_from(Open&& open, const std::string& name, const Limits& limits, Report* report,
                Soundness soundness = Soundness::required) {
  Report own;
  try {
    const ByteSource source = open();
    return graph_of(read_tree(source, limits), limits, report ? *report : own, soundness);
  } catch (const Error& error) {
    throw error.in_file(name);
  } catch (const std::bad_alloc&) {
    throw Error(name, "", "", "there is not enough memory to read it");
  } catch (const std::runtime_error& error) {
    throw Error(name, "", "", error.what());
  }
}

}  // namespace

Graph read(const std::string& file, const Limits& limits, Report* report) {
  return read_from([&] { return ByteSource::open(file); }, file, limits, report);
}

Graph read_to_look(const std::string& file, const Limits& limits, Report& report) {
  return read_from([&] { return ByteSource::open(file); }, file, limits, &report, Soundness::reported);
}

Graph read(std::span<const std::byte> bytes, const Limits& limits, Report* report, const std::string& name) {
  return read_from([&] { return ByteSource(bytes); }, name, limits, report);
}

}  // namespace spikeforge::nir
