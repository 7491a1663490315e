// NIR files from strangers: one is read or refused in one line, within the limits, and what was read is a sound graph
// that can be laid out again and means the same.
#include <spikeforge/nir/error.h>
#include <spikeforge/nir/interpret.h>
#include <spikeforge/nir/read.h>
#include <spikeforge/nir/shapes.h>
#include <spikeforge/nir/validate.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

using namespace spikeforge;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

// libhdf5 keeps some of what it allocated for a damaged file.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

namespace {

const nir::Limits limits{.depth = 16, .bytes = 16 << 20, .nodes = 4096, .string = 4096};

void infer(const nir::Graph& graph, nir::ShapeRule rule) {
  try {
    infer_shapes(graph, rule);
  } catch (const nir::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nir::Graph graph;
  try {
    graph = nir::read(std::as_bytes(std::span(data, size)), limits, nullptr, "fuzz");
  } catch (const nir::Error& error) {
    const std::string message = error.what();
    require(message.starts_with("fuzz: ") && message.find('\n') == std::string::npos && message.size() < 4096);
    return 0;
  }
  validate(graph, limits);
  infer(graph, nir::ShapeRule::strict);
  infer(graph, nir::ShapeRule::tolerant);
  nir::Report report;
  require(graph_of(group_of(graph), limits, report) == graph);
  return 0;
}
