// A graph with every type of node, of every numeric type, nested, with branches, a cycle and metadata.
#pragma once
#include "csrc/nir/node.h"

#include <numeric>

namespace spikeforge::test {

inline nir::Array numbers(nir::Shape shape, nir::DType dtype = nir::DType::float32, double first = 0.5) {
  using namespace nir;
  const auto count = static_cast<std::size_t>(count_of(shape));
  std::vector<float> floats(count);
  std::iota(floats.begin(), floats.end(), static_cast<float>(first));
  if (dtype == DType::float32) return Array::of<float>(std::move(shape), floats);
  if (dtype == DType::float64) {
    const std::vector<double> doubles(floats.begin(), floats.end());
    return Array::of<double>(std::move(shape), doubles);
  }
  return Array::full(std::move(shape), first, dtype);
}

inline nir::Graph every_node() {
  using namespace nir;
  const auto s = [](double first = 0.5) { return numbers({4}, DType::float64, first); };
  Graph inner;
  inner.nodes = {{"input", {Input{{4}}, {}}},
                 {"lif", {LIF{s(), s(), s(0), s(), s(0)}, {}}},
                 {"recurrent", {Linear{numbers({4, 4}, DType::float16)}, {}}},
                 {"output", {Output{Shape{4}}, {}}}};
  inner.edges = {{"input", "lif"}, {"lif", "recurrent"}, {"recurrent", "lif"}, {"lif", "output"}};
  inner.metadata.members = {{"depth", Array::scalar(std::int64_t{2})}};

  Group inner_metadata;
  inner_metadata.members = {{"flag", Array::scalar(1, DType::boolean)}, {"words", Strings{{2}, {"ä", ""}}}};
  Group metadata;
  metadata.members = {{"text", Strings::one("two\nlines")},
                      {"number", Array::scalar(0.25)},
                      {"list", Array::of<std::int64_t>({3}, {1, 2, 3})},
                      {"inner", inner_metadata}};

  Graph graph;
  graph.nodes = {
      {"input", {Input{{2, 8, 6}}, metadata}},
      {"conv",
       {Conv2d{std::array<std::int64_t, 2>{8, 6},
               numbers({4, 1, 3, 5}),
               {2, 1},
               {PaddingMode::numbers, {1, 2}},
               {1, 1},
               2,
               numbers({4})},
        {}}},
      {"sum", {SumPool2d{{2, 2}, {2, 2}, {0, 0}}, {}}},
      {"avg", {AvgPool2d{{1, 3}, {1, 1}, {0, 1}}, {}}},
      {"flatten", {Flatten{0, -1, Shape{4, 2, 3}}, {}}},
      {"affine", {Affine{numbers({4, 24}, DType::float64), numbers({4})}, metadata}},
      {"scale", {Scale{numbers({4}, DType::int16, 3)}, {}}},
      {"delay", {Delay{numbers({4}, DType::float64, 0)}, {}}},
      {"threshold", {Threshold{numbers({4}, DType::uint8, 200)}, {}}},
      {"i", {I{s()}, {}}},
      {"if", {IF{s(), s(), {}}, {}}},
      {"li", {LI{s(), s(), s(0)}, {}}},
      {"cubali", {CubaLI{s(), s(), s(), s(0), s()}, {}}},
      {"cubalif", {CubaLIF{s(), s(), s(), s(0), s(), s(0), {}}, {}}},
      {"inner", {inner, {}}},
      {"sequence", {Input{{3, 20}}, {}}},
      {"conv1d",
       {Conv1d{std::array<std::int64_t, 1>{20}, numbers({2, 3, 4}), {3}, {PaddingMode::same, {}}, {2}, 1, numbers({2})},
        {}}},
      {"end", {Output{Shape{2, 7}}, {}}},
      {"output", {Output{Shape{4}}, {}}},
  };
  graph.edges = {{"input", "conv"},
                 {"conv", "sum"},
                 {"sum", "avg"},
                 {"avg", "flatten"},
                 {"flatten", "affine"},
                 {"affine", "scale"},
                 {"scale", "delay"},
                 {"delay", "i"},
                 {"i", "if"},
                 {"if", "li"},
                 {"li", "cubali"},
                 {"cubali", "threshold"},
                 {"threshold", "cubalif"},
                 {"cubalif", "inner"},
                 {"inner", "output"},
                 {"affine", "output"},
                 {"affine", "output"},
                 {"scale", "scale"},
                 {"sequence", "conv1d"},
                 {"conv1d", "end"}};
  graph.metadata = metadata;
  return graph;
}

}  // namespace spikeforge::test
