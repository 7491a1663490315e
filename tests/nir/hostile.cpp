// Illegal values in a NIR file: each raises an error that names node and field. tests/nir/test_files.py tests files
// with malformed HDF5.
#include "tests/catch.h"
#include "tests/nir/every_node.h"

#include "csrc/nir/byte_source.h"
#include "csrc/nir/error.h"
#include "csrc/nir/global_heap.h"
#include "csrc/nir/interpret.h"
#include "csrc/nir/validate.h"

#include <cmath>
#include <set>

namespace spikeforge::test {
namespace {

using namespace nir;

Group lif() {
  Group group;
  group.members = {{"type", Strings::one("LIF")}};
  for (const char* field : {"tau", "r", "v_leak", "v_threshold"}) group.members.push_back({field, numbers({3})});
  return group;
}

Group file_with(Group node, Value edges = Array(DType::float64, {0})) {
  Group nodes, root, file;
  nodes.members = {{"n", std::move(node)}};
  root.members = {{"type", Strings::one("NIRGraph")}, {"nodes", nodes}, {"edges", std::move(edges)}};
  file.members = {{"node", root}};
  return file;
}

Graph graph_from(const Group& file, const Limits& limits = {}) {
  Report report;
  return graph_of(file, limits, report);
}

std::string refusal(const Group& file, const Limits& limits = {}) {
  return test::message_of<Error>([&] { graph_from(file, limits); });
}

Group with(Group group, std::string_view name, Value value) {
  for (Member& member : group.members)
    if (member.name == name) {
      member.value = std::move(value);
      return group;
    }
  group.members.push_back({std::string(name), std::move(value)});
  return group;
}

Group without(Group group, std::string_view name) {
  std::erase_if(group.members, [&](const Member& member) { return member.name == name; });
  return group;
}

}  // namespace

TEST_CASE("a sound file is read") {
  const Graph graph = graph_from(file_with(lif()));
  CHECK(std::get<LIF>(graph.nodes[0].node.kind).tau == numbers({3}));
  CHECK_FALSE(std::get<LIF>(graph.nodes[0].node.kind).v_reset.has_value());
}

TEST_CASE("every field that may not be absent is missed by its name") {
  const Graph all = every_node();
  int missed = 0;
  for (const NamedNode& node : all.nodes) {
    if (std::holds_alternative<Graph>(node.node.kind)) continue;
    Graph alone;
    alone.nodes = {{"n", node.node}};
    const Group root = std::get<Group>(group_of(alone).find("node")->value);
    const Group fields = std::get<Group>(std::get<Group>(root.find("nodes")->value).find("n")->value);
    for (const Member& field : fields.members) {
      const std::string told = refusal(file_with(without(fields, field.name)));
      CAPTURE(node.node.type(), field.name, told);
      static const std::set<std::string> optional = {"metadata",   "v_reset",   "w_in",   "input_shape",
                                                     "input_type", "start_dim", "end_dim"};
      const bool may_be_absent =
          optional.contains(field.name) || (node.node.type() == "Output" && field.name == "shape");
      CHECK(told == (may_be_absent ? "" : "node n, field " + field.name + ": is missing"));
      missed += !may_be_absent;
    }
  }
  CHECK(missed > 40);
}

TEST_CASE("fields of another kind are refused by name") {
  CHECK(refusal(file_with(with(lif(), "tau", Strings::one("x")))) ==
        "node n, field tau: expected numbers, but it is text");
  CHECK(refusal(file_with(with(lif(), "tau", Group{}))) == "node n, field tau: expected numbers, but it is a group");
  CHECK(refusal(file_with(with(lif(), "metadata", Array{}))) ==
        "node n, field metadata: expected a group, but it is a dataset");
  CHECK(refusal(file_with(with(lif(), "type", Strings{{2}, {"LIF", "LIF"}}))) ==
        "node n, field type: expected one text");
}

TEST_CASE("time constants are finite and positive, in every type of number") {
  for (const DType dtype : {DType::float16, DType::float32, DType::float64, DType::int8, DType::uint64})
    CHECK_THAT(refusal(file_with(with(lif(), "tau", Array::full({3}, 0, dtype)))),
               has_text("node n, field tau: a time constant"));
  for (const double value : {-1.0, std::nan(""), double{INFINITY}})
    CHECK_THAT(refusal(file_with(with(lif(), "tau", Array::full({3}, value, DType::float16)))),
               has_text("node n, field tau: a time constant"));
  CHECK(refusal(file_with(with(lif(), "v_leak", Array::full({3}, std::nan(""))))) == "");  // a warning
}

TEST_CASE("edges end at nodes") {
  const auto edges = [&](Value value) { return refusal(file_with(lif(), std::move(value))); };
  CHECK(edges(Strings{{1, 2}, {"n", "n"}}) == "");
  CHECK(edges(Strings{{1, 2}, {"n", "m"}}) == "node /, field edges: n -> m: there is no node m");
  CHECK_THAT(edges(Strings{{2}, {"n", "n"}}), has_text("expected shape [edges, 2], but it is [2]"));
  CHECK_THAT(edges(Array::of<std::int32_t>({1, 2}, {0, 0})), has_text("0 -> 0: there is no node 0"));
  CHECK_THAT(edges(Array::of<double>({1, 2}, {0.5, 0})), has_text("expected names, or whole numbers from 0 on"));
  CHECK_THAT(edges(Group{}), has_text("expected a dataset, but it is a group"));
}

TEST_CASE("nesting and warnings have an end") {
  Graph graph;
  for (int depth = 1; depth < 10; ++depth) {
    Graph outer;
    outer.nodes = {{"g", {graph, {}}}};
    graph = outer;
  }
  CHECK(refusal(group_of(graph), {.depth = 10}) == "");
  CHECK(refusal(group_of(graph), {.depth = 9}) == "node g/g/g/g/g/g/g/g/g: it is nested more than 9 levels deep");
  CHECK_THROWS_AS(validate(graph, {.depth = 9}), Error);

  Graph many;
  many.nodes = {{"n", {I{numbers({1})}, {}}}};
  many.edges.assign(1000, {"n", "n"});
  Report report;
  validate(many, {}, &report);
  CHECK(report.warnings.size() == 101);
}

TEST_CASE("a string is read from the heap only if it is complete") {
  // A collection of 48 bytes at address 8: its header, then object 1 of 5 bytes, "hello".
  std::string file(8, '\0');
  file += std::string("GCOL\x01\0\0\0", 8) + std::string("\x30\0\0\0\0\0\0\0", 8);
  file += std::string("\x01\0\x01\0\0\0\0\0", 8) + std::string("\x05\0\0\0\0\0\0\0", 8) + std::string("hello\0\0\0", 8);
  file += std::string(8, '\0');
  const auto read = [&](const std::string& bytes, std::uint64_t address, std::uint32_t index, std::uint32_t length) {
    const ByteSource source(std::as_bytes(std::span(bytes)));
    return GlobalHeap(source, 0, 8).read(address, index, length);
  };
  CHECK(read(file, 8, 1, 5) == "hello");
  CHECK(read(file, 8, 1, 4) == "hell");
  CHECK(read(file, ~std::uint64_t{0}, 7, 0).empty());
  CHECK_THROWS(read(file, 8, 1, 6));
  CHECK_THROWS(read(file, 8, 2, 5));
  CHECK_THROWS(read(file, 0, 1, 5));
  CHECK_THROWS(read(file, ~std::uint64_t{0} - 4, 1, 5));
  for (std::size_t size = 0; size < file.size(); ++size) CHECK_THROWS(read(file.substr(0, size), 8, 1, 5));
  std::string longer = file;
  longer[32] = '\x7f';  // the object reaches beyond the collection
  CHECK_THROWS(read(longer, 8, 1, 5));
}

}  // namespace spikeforge::test
