// The 19 nodes of NIR. Shapes are without batch and time; S is a neuron's shape, of any rank. Equations and fields:
// Pedersen et al., Nature Communications 15, 8122 (2024), and neuroir.org.
//
// Every node lists its fields once, in fields(), with their names in files. Reading, writing, comparing and printing
// use that list. Optional fields are absent in files of some versions.
#pragma once
#include "csrc/nir/array.h"
#include "csrc/nir/value.h"

#include <array>
#include <optional>
#include <string_view>
#include <type_traits>

namespace spikeforge::nir {

struct Input {
  static constexpr std::string_view type = "Input";
  Shape shape;

  static void fields(auto& n, auto&& field) { field("shape", n.shape); }
};

struct Output {
  static constexpr std::string_view type = "Output";
  std::optional<Shape> shape;  // absent up to version 0.0.6: the shape that arrives

  static void fields(auto& n, auto&& field) { field("shape", n.shape); }
};

// y = W x + b over the last dimension: x is [..., in], weight [..., out, in], bias [..., out].
struct Affine {
  static constexpr std::string_view type = "Affine";
  Array weight, bias;

  static void fields(auto& n, auto&& field) {
    field("weight", n.weight);
    field("bias", n.bias);
  }
};

// y = W x
struct Linear {
  static constexpr std::string_view type = "Linear";
  Array weight;

  static void fields(auto& n, auto&& field) { field("weight", n.weight); }
};

// y = x * scale, scale is [S].
struct Scale {
  static constexpr std::string_view type = "Scale";
  Array scale;

  static void fields(auto& n, auto&& field) { field("scale", n.scale); }
};

enum class PaddingMode { numbers, same, valid };

template <int D> struct Padding {
  PaddingMode mode = PaddingMode::numbers;
  std::array<std::int64_t, D> numbers{};  // zeros on either side; only in the mode `numbers`
  bool operator==(const Padding&) const = default;
};

// Convolution over D dimensions: x is [groups * C, *space], weight [out, C, *kernel], bias [out].
template <int D> struct Conv {
  static constexpr std::string_view type = D == 1 ? "Conv1d" : "Conv2d";
  std::optional<std::array<std::int64_t, D>> input_shape;  // of space; absent: the shape that arrives
  Array weight;
  std::array<std::int64_t, D> stride{};
  Padding<D> padding;
  std::array<std::int64_t, D> dilation{};
  std::int64_t groups = 1;
  Array bias;

  static void fields(auto& n, auto&& field) {
    field("input_shape", n.input_shape);
    field("weight", n.weight);
    field("stride", n.stride);
    field("padding", n.padding);
    field("dilation", n.dilation);
    field("groups", n.groups);
    field("bias", n.bias);
  }
};
using Conv1d = Conv<1>;
using Conv2d = Conv<2>;

// Sums or means of windows over the last two dimensions. Padding counts as zeros.
struct SumPool2d {
  static constexpr std::string_view type = "SumPool2d";
  std::array<std::int64_t, 2> kernel_size{}, stride{}, padding{};

  static void fields(auto& n, auto&& field) {
    field("kernel_size", n.kernel_size);
    field("stride", n.stride);
    field("padding", n.padding);
  }
};

struct AvgPool2d {
  static constexpr std::string_view type = "AvgPool2d";
  std::array<std::int64_t, 2> kernel_size{}, stride{}, padding{};

  static void fields(auto& n, auto&& field) { SumPool2d::fields(n, field); }
};

// Merges dimensions start_dim to end_dim, both included, into one. Negative ones count from the end.
struct Flatten {
  static constexpr std::string_view type = "Flatten";
  std::int64_t start_dim = 1, end_dim = -1;
  std::optional<Shape> input_type;  // absent: the shape that arrives

  static void fields(auto& n, auto&& field) {
    field("start_dim", n.start_dim);
    field("end_dim", n.end_dim);
    field("input_type", n.input_type);
  }
};

// y(t) = x(t - delay), where delay is [S], in seconds.
struct Delay {
  static constexpr std::string_view type = "Delay";
  Array delay;

  static void fields(auto& n, auto&& field) { field("delay", n.delay); }
};

// 1 if x > threshold, else 0.
struct Threshold {
  static constexpr std::string_view type = "Threshold";
  Array threshold;

  static void fields(auto& n, auto&& field) { field("threshold", n.threshold); }
};

// dv/dt = r x; y = v. Parameters of all neurons below are [S].
struct I {
  static constexpr std::string_view type = "I";
  Array r;

  static void fields(auto& n, auto&& field) { field("r", n.r); }
};

// tau dv/dt = (v_leak - v) + r x; y = v
struct LI {
  static constexpr std::string_view type = "LI";
  Array tau, r, v_leak;

  static void fields(auto& n, auto&& field) {
    field("tau", n.tau);
    field("r", n.r);
    field("v_leak", n.v_leak);
  }
};

// dv/dt = r x; if v > v_threshold: y = 1 and v becomes v_reset. v_reset may be absent up to version 1.0.5, whose
// documentation states v - v_threshold; from 1.0.7 on its default is 0. The program that runs the graph decides.
struct IF {
  static constexpr std::string_view type = "IF";
  Array r, v_threshold;
  std::optional<Array> v_reset;

  static void fields(auto& n, auto&& field) {
    field("r", n.r);
    field("v_threshold", n.v_threshold);
    field("v_reset", n.v_reset);
  }
};

// tau dv/dt = (v_leak - v) + r x; fires as IF.
struct LIF {
  static constexpr std::string_view type = "LIF";
  Array tau, r, v_leak, v_threshold;
  std::optional<Array> v_reset;

  static void fields(auto& n, auto&& field) {
    field("tau", n.tau);
    field("r", n.r);
    field("v_leak", n.v_leak);
    field("v_threshold", n.v_threshold);
    field("v_reset", n.v_reset);
  }
};

// tau_syn di/dt = -i + w_in x; tau_mem dv/dt = (v_leak - v) + r i; y = v. If w_in is absent, it is 1.
struct CubaLI {
  static constexpr std::string_view type = "CubaLI";
  Array tau_syn, tau_mem, r, v_leak;
  std::optional<Array> w_in;  // [S], or a single number

  static void fields(auto& n, auto&& field) {
    field("tau_syn", n.tau_syn);
    field("tau_mem", n.tau_mem);
    field("r", n.r);
    field("v_leak", n.v_leak);
    field("w_in", n.w_in);
  }
};

// CubaLI that fires as IF.
struct CubaLIF {
  static constexpr std::string_view type = "CubaLIF";
  Array tau_syn, tau_mem, r, v_leak, v_threshold;
  std::optional<Array> v_reset, w_in;

  static void fields(auto& n, auto&& field) {
    field("tau_syn", n.tau_syn);
    field("tau_mem", n.tau_mem);
    field("r", n.r);
    field("v_leak", n.v_leak);
    field("v_threshold", n.v_threshold);
    field("v_reset", n.v_reset);
    field("w_in", n.w_in);
  }
};

struct NamedNode;

// The order of edges matters: values of several edges into a node are summed in this order.
struct Edge {
  std::string from, to;
  bool operator==(const Edge&) const = default;
};

struct SPIKEFORGE_API Graph {
  static constexpr std::string_view type = "NIRGraph";
  std::vector<NamedNode> nodes;  // in files: by name. Names are unique and have no slash.
  std::vector<Edge> edges;       // duplicates and self-loops are allowed
  Group metadata;

  // Returns null if there is none.
  const NamedNode* find(std::string_view name) const;
};

using Kind = std::variant<Input, Output, Affine, Linear, Scale, Conv1d, Conv2d, SumPool2d, AvgPool2d, Flatten, Delay,
                          Threshold, I, LI, IF, LIF, CubaLI, CubaLIF, Graph>;

template <class N, class... Others> inline constexpr bool is_one_of = (std::is_same_v<N, Others> || ...);

// Returns an empty node of that type, or an Input if the type is unknown.
SPIKEFORGE_API Kind kind_named(std::string_view type);

struct SPIKEFORGE_API Node {
  Kind kind;
  Group metadata;  // empty for a nested graph, which has its metadata itself

  std::string_view type() const {
    return std::visit([](const auto& n) { return n.type; }, kind);
  }
};

struct NamedNode {
  std::string name;
  Node node;
};

// True if fields, metadata and edges are equal, edges in the same order, nodes in any order.
SPIKEFORGE_API bool operator==(const Graph& a, const Graph& b);
SPIKEFORGE_API bool operator==(const Node& a, const Node& b);

// Calls field(name, array) for each present array field of a node.
template <class Field> void for_each_array(const Kind& kind, Field&& field) {
  std::visit(
      [&]<class N>(const N& n) {
        if constexpr (!std::is_same_v<N, Graph>)
          N::fields(n, [&]<class T>(std::string_view name, const T& value) {
            if constexpr (std::is_same_v<T, Array>) field(name, value);
            if constexpr (std::is_same_v<T, std::optional<Array>>)
              if (value) field(name, *value);
          });
      },
      kind);
}

// Sets the fields that are arrays to what array(name) returns, if that is not std::nullopt.
template <class Find> void set_arrays(Kind& kind, Find&& array) {
  std::visit(
      [&]<class N>(N& n) {
        if constexpr (!std::is_same_v<N, Graph>)
          N::fields(n, [&]<class T>(std::string_view name, T& field) {
            if constexpr (std::is_same_v<T, Array> || std::is_same_v<T, std::optional<Array>>)
              if (std::optional<Array> found = array(name)) field = *std::move(found);
          });
      },
      kind);
}

}  // namespace spikeforge::nir
