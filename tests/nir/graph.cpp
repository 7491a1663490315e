// Arrays, graphs and their files.
#include "tests/catch.h"
#include "tests/nir/every_node.h"

#include "csrc/nir/array_values.h"
#include "csrc/nir/error.h"
#include "csrc/nir/interpret.h"
#include "csrc/nir/read.h"
#include "csrc/nir/shapes.h"
#include "csrc/nir/write.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <stdlib.h>

namespace spikeforge::test {
namespace {

using namespace nir;

struct TemporaryFolder {
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "spikeforge_nir_XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

std::vector<std::byte> bytes_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("every half is the float of its bits, and is restored from it") {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const float value = float_of_half(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      CHECK((bits >> 10 & 31) == 31);
      continue;
    }
    if (half_of_double(value) != bits) FAIL("half " << bits << " is " << value);
  }
  CHECK(float_of_half(0x3c00) == 1.0F);
  CHECK(float_of_half(0x0001) == std::ldexp(1.0F, -24));
  CHECK(float_of_half(0xfbff) == -65504.0F);
  // A number halfway between two float16 values is rounded to the even one.
  CHECK(half_of_double(1 + std::ldexp(1.0, -11)) == 0x3c00);
  CHECK(half_of_double(1 + 3 * std::ldexp(1.0, -11)) == 0x3c02);
  CHECK(half_of_double(65519.9) == 0x7bff);
  CHECK(half_of_double(65520) == 0x7c00);
}

TEST_CASE("an array has the range of its numbers, NaN apart") {
  const Range range = range_of(Array::of<double>({2, 2}, {3, std::nan(""), -1, INFINITY}));
  CHECK(range.least == -1);
  CHECK(std::isinf(range.greatest));
  CHECK(range.has_nan);
  CHECK(range.has_infinity);
  CHECK(range_of(Array::of<std::uint8_t>({2}, {255, 7})).greatest == 255);
  CHECK(is_finite(Array::of<float>({2}, {3e38F, -0.0F})));
  CHECK_FALSE(is_finite(Array::of<float>({2}, {1, -INFINITY})));
  CHECK_FALSE(is_finite(Array::of<double>({2}, {std::nan(""), 1})));
  CHECK_FALSE(is_finite(Array::full({1}, INFINITY, DType::float16)));
  CHECK_THROWS_AS(Array(DType::int8, {std::int64_t{1} << 40, std::int64_t{1} << 40}), std::overflow_error);
}

TEST_CASE("every type of node is read from a file as it was written") {
  const TemporaryFolder folder;
  const Graph graph = every_node();
  for (const int compression : {0, 9}) {
    write(graph, folder.path / "a.nir", {.compression = compression});
    Report report;
    const Graph back = read(folder.path / "a.nir", {}, &report);
    CHECK(back == graph);
    CHECK(report.version == written_version());
    CHECK(read(bytes_of(folder.path / "a.nir")) == graph);
  }
  Graph other = graph;
  std::swap(other.edges[0], other.edges[1]);
  CHECK_FALSE(other == graph);  // the order of edges is compared
  other = graph;
  std::get<Scale>(other.nodes[6].node.kind).scale = Array::scalar(1.0);
  CHECK_FALSE(other == graph);
}

TEST_CASE("threads read and write files at the same time") {
  const TemporaryFolder folder;
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      const auto file = folder.path / std::to_string(i);
      for (int k = 0; k < 5; ++k) {
        write(every_node(), file);
        right += read(file) == every_node();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 20);
}

TEST_CASE("a file cut off anywhere, and one in memory, are refused by name") {
  const TemporaryFolder folder;
  write(every_node(), folder.path / "a.nir");
  const std::vector<std::byte> bytes = bytes_of(folder.path / "a.nir");
  for (std::size_t size = 0; size < bytes.size(); size += bytes.size() / 17)
    CHECK_THROWS_WITH(read(std::span(bytes).first(size), {}, nullptr, "the name"), has_text("the name: "));
}

TEST_CASE("a refused write leaves the folder as it was") {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "a.nir") << "old";
  const auto refuses = [&](const Graph& graph, const std::string& words) {
    CHECK_THROWS_WITH(write(graph, folder.path / "a.nir"), has_text("a.nir: " + words));
    CHECK(bytes_of(folder.path / "a.nir").size() == 3);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
  };
  const Node node{I{Array::full({3}, 1)}, {}};
  refuses(Graph{{{"a/b", node}}, {}, {}}, "node /, field nodes: \"a/b\" cannot be a node's name");
  refuses(Graph{{{"", node}}, {}, {}}, "node /, field nodes: \"\" cannot be a node's name");
  refuses(Graph{{{"a", node}, {"a", node}}, {}, {}}, "node a: two nodes have this name");
  refuses(Graph{{{"a", node}}, {{"a", "b"}}, {}}, "node /, field edges: a -> b: there is no node b");
  refuses(Graph{{{"a", {LI{Array::scalar(-1.0), Array::scalar(1.0), Array::scalar(0.0)}, {}}}}, {}, {}},
          "node a, field tau: a time constant must be finite and > 0, but -1 is in it");
  CHECK_THROWS_WITH(write(Graph{}, folder.path / "none" / "a.nir"), has_text("cannot be written: No such file"));
  CHECK_THROWS_WITH(write(Graph{}, folder.path), has_text("is not a regular file and is not replaced"));
  CHECK_THROWS_WITH(write(Graph{}, folder.path / "a.nir", {.compression = 10}),
                    has_text("compression must be from 0 to 9"));
}

TEST_CASE("an old file keeps its permissions, and a link its target") {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "a.nir") << "old";
  std::filesystem::permissions(folder.path / "a.nir",
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::create_symlink("a.nir", folder.path / "link.nir");
  write(every_node(), folder.path / "link.nir");
  CHECK(std::filesystem::is_symlink(folder.path / "link.nir"));
  CHECK(read(folder.path / "a.nir") == every_node());
  CHECK(std::filesystem::status(folder.path / "a.nir").permissions() ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST_CASE("shapes that other programs need are filled in on writing") {
  const TemporaryFolder folder;
  Graph graph = every_node();
  for (NamedNode& node : graph.nodes) {
    if (Conv2d* conv = std::get_if<Conv2d>(&node.node.kind)) conv->input_shape.reset();
    if (Conv1d* conv = std::get_if<Conv1d>(&node.node.kind)) conv->input_shape.reset();
    if (Flatten* flatten = std::get_if<Flatten>(&node.node.kind)) flatten->input_type.reset();
    if (Output* output = std::get_if<Output>(&node.node.kind)) output->shape.reset();
  }
  CHECK_FALSE(graph == every_node());
  write(graph, folder.path / "a.nir");
  CHECK(read(folder.path / "a.nir") == every_node());
}

TEST_CASE("an error is one line, whatever is in the names") {
  const Error error("a\nb.nir", "n\x01\xff", "ß", "reason");
  CHECK(std::string(error.what()) == "a\\x0ab.nir: node n\\x01\\xff, field ß: reason");
  CHECK(printable(std::string(1000, 'x')).size() < 250);
}

}  // namespace spikeforge::test
