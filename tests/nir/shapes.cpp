// Shape inference of a graph: compares output sizes with an explicit count of window positions, and tests edge cases.
#include "tests/catch.h"
#include "tests/nir/every_node.h"

#include "csrc/nir/error.h"
#include "csrc/nir/shapes.h"

#include <random>

namespace spikeforge::test {
namespace {

using namespace nir;

Shape after(const Kind& kind, const Shape& in, ShapeRule rule = ShapeRule::strict) {
  return output_shape({kind, {}}, in, "n", rule);
}

// Counts the positions at which a window fits, one by one.
std::int64_t places(std::int64_t size, std::int64_t before, std::int64_t behind, std::int64_t kernel,
                    std::int64_t dilation, std::int64_t stride) {
  std::int64_t count = 0;
  for (std::int64_t first = -before; first + dilation * (kernel - 1) < size + behind; first += stride) ++count;
  return count;
}

Graph chain(const Shape& in, Node node, std::optional<Shape> out) {
  Graph graph;
  graph.nodes = {{"in", {Input{in}, {}}}, {"n", std::move(node)}, {"out", {Output{std::move(out)}, {}}}};
  graph.edges = {{"in", "n"}, {"n", "out"}};
  return graph;
}

Node lif(const Array& tau, const Array& rest) { return {LIF{tau, rest, rest, rest, rest}, {}}; }

}  // namespace

TEST_CASE("convolutions and pools have one output for each position of the window") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto from = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  for (int i = 0; i < 300; ++i) {
    const std::int64_t groups = from(1, 3), in = from(1, 3), out = groups * from(1, 3);
    std::array<std::int64_t, 2> size, kernel, stride, padding, dilation;
    Shape plain{out}, valid{out}, same{out}, pooled{in * groups};
    for (int d = 0; d < 2; ++d) {
      kernel[d] = from(1, 5);
      dilation[d] = from(1, 3);
      stride[d] = from(1, 4);
      padding[d] = from(0, 4);
      size[d] = dilation[d] * (kernel[d] - 1) + from(1, 20);
      const std::int64_t reach = dilation[d] * (kernel[d] - 1);
      plain.push_back(places(size[d], padding[d], padding[d], kernel[d], dilation[d], stride[d]));
      valid.push_back(places(size[d], 0, 0, kernel[d], dilation[d], stride[d]));
      same.push_back(places(size[d], reach / 2, reach - reach / 2, kernel[d], dilation[d], stride[d]));
      pooled.push_back(places(size[d], padding[d], padding[d], kernel[d], 1, stride[d]));
    }
    const Shape x{in * groups, size[0], size[1]};
    const auto conv = [&](Padding<2> p) {
      return after(Conv2d{size, numbers({out, in, kernel[0], kernel[1]}), stride, p, dilation, groups, numbers({out})},
                   x);
    };
    CHECK(conv({PaddingMode::numbers, padding}) == plain);
    CHECK(conv({PaddingMode::valid, {}}) == valid);
    CHECK(conv({PaddingMode::same, {}}) == same);
    CHECK(after(SumPool2d{kernel, stride, padding}, x) == pooled);
    CHECK(after(AvgPool2d{kernel, stride, padding}, x) == pooled);
    const Conv1d one{{},
                     numbers({out, in, kernel[1]}),
                     {stride[1]},
                     {PaddingMode::numbers, {padding[1]}},
                     {dilation[1]},
                     groups,
                     numbers({out})};
    CHECK(after(one, {x[0], x[2]}) == Shape{out, plain[2]});
  }
}

TEST_CASE("flattening joins the dimensions from start to end") {
  const auto flat = [](std::int64_t start, std::int64_t end) { return after(Flatten{start, end, {}}, {4, 5, 2, 3}); };
  CHECK(flat(0, -1) == Shape{120});
  CHECK(flat(1, -1) == Shape{4, 30});
  CHECK(flat(1, 2) == Shape{4, 10, 3});
  CHECK(flat(-2, -2) == Shape{4, 5, 2, 3});
  CHECK_THROWS_WITH(flat(0, 4), has_text("node n, field end_dim: there is no dimension 4 in [4, 5, 2, 3]"));
  CHECK_THROWS_WITH(flat(2, 1), has_text("node n, field end_dim: dimension 1 is before start_dim 2"));
}

TEST_CASE("a matrix acts on the last dimension") {
  CHECK(after(Linear{numbers({5, 2, 3})}, {5, 3}) == Shape{5, 2});
  CHECK_THROWS_WITH(after(Linear{numbers({2, 3})}, {4}),
                    has_text("node n, field weight: it takes [3], but the input has shape [4]"));
}

TEST_CASE("a window that does not fit is refused") {
  CHECK_THROWS_WITH(after(SumPool2d{{3, 3}, {1, 1}, {0, 0}}, {1, 2, 9}),
                    has_text("node n: a window of 3 does not fit into 2 elements"));
  CHECK_THROWS_WITH(after(SumPool2d{{3, 3}, {1, 1}, {0, 0}}, {9}),
                    has_text("SumPool2d takes [..., height, width], but the input has shape [9]"));
  CHECK_THROWS_WITH(after(Conv1d{{}, numbers({2, 3, 4}), {1}, {}, {1}, 1, numbers({2})}, {2, 9}),
                    has_text("it is for 3 input channels"));
}

TEST_CASE("strict shapes are those of the graph everywhere, tolerant ones follow the arriving shapes") {
  const Array three = numbers({3}), one = numbers({1});
  CHECK_NOTHROW(infer_shapes(chain({3}, lif(three, three), Shape{3})));
  // A parameter of a wrong shape, and a wrong Output.
  CHECK_THROWS_WITH(infer_shapes(chain({3}, lif(three, one), Shape{3})),
                    has_text("node n, field r: expected shape [3], that of tau, but it is [1]"));
  CHECK_THROWS_WITH(infer_shapes(chain({3}, lif(three, three), Shape{4})),
                    has_text("node /, field edges: n -> out: the output has shape [3], but the input must have [4]"));
  Report report;
  const auto shapes = infer_shapes(chain({2, 3}, lif(three, one), Shape{4}), ShapeRule::tolerant, &report);
  CHECK(shapes[1].out == Shape{2, 3});
  CHECK(shapes[2].in == Shape{2, 3});
  REQUIRE(report.warnings.size() == 1);
  CHECK_THAT(report.warnings[0], has_text("node out: it declares the input shape [4], but the input has shape [2, 3]"));
  // Both raise an error for inconsistent shapes.
  CHECK_THROWS_WITH(infer_shapes(chain({4}, lif(three, three), {}), ShapeRule::tolerant),
                    has_text("node n: its parameters have shape [3], but the input has shape [4]"));
}

TEST_CASE("one number for w_in serves all neurons") {
  const Array s = numbers({3});
  CHECK_NOTHROW(infer_shapes(chain({3}, {CubaLI{s, s, s, s, Array::scalar(2.0)}, {}}, Shape{3})));
}

TEST_CASE("shapes go around cycles, and through nested graphs") {
  const Array three = numbers({3});
  Graph graph = chain({3}, {chain({3}, lif(three, three), Shape{3}), {}}, {});
  graph.nodes.push_back({"back", {Linear{numbers({3, 3})}, {}}});
  graph.edges.push_back({"n", "back"});
  graph.edges.push_back({"back", "n"});
  const auto shapes = infer_shapes(graph);
  for (const NodeShapes& s : shapes) CHECK((s.in == Shape{3} && s.out == Shape{3}));

  Graph inner = chain({3}, lif(three, three), Shape{3});
  inner.nodes.push_back({"second", {Input{{3}}, {}}});
  CHECK_THROWS_WITH(infer_shapes(chain({3}, {inner, {}}, {})),
                    has_text("node n, field nodes: an edge leads to this graph, which has 2 Inputs instead of one"));
}

TEST_CASE("a shape that nothing tells is an error if strict") {
  Graph graph;
  graph.nodes = {{"pool", {SumPool2d{{2, 2}, {2, 2}, {0, 0}}, {}}}};
  CHECK_THROWS_WITH(infer_shapes(graph), has_text("node pool: its shape cannot be inferred"));
  CHECK_FALSE(infer_shapes(graph, ShapeRule::tolerant)[0].out.has_value());
}

TEST_CASE("the graph of every node has the shapes that it was made with") {
  const Graph graph = every_node();
  const auto shapes = infer_shapes(graph);
  const auto out = [&](std::string_view name) {
    return shapes[static_cast<std::size_t>(graph.find(name) - graph.nodes.data())].out;
  };
  CHECK(out("conv") == Shape{4, 4, 6});
  CHECK(out("sum") == Shape{4, 2, 3});
  CHECK(out("flatten") == Shape{24});
  CHECK(out("conv1d") == Shape{2, 7});
}

}  // namespace spikeforge::test
