// Evaluates a graph linearised at a point: a spike is its value at the point plus the surrogate's slope times the
// distance, a detached value is constant, and branches are those taken at the point. Finite differences of this
// function are the expected gradients. It shares no code with automatic differentiation.
#pragma once

#include "csrc/graph/internal/evaluate.h"

#include <cmath>
#include <span>
#include <vector>

namespace spikeforge::test {

class Linearised {
 public:
  Linearised(const graph::Graph& graph, std::vector<double> at)
      : graph_(graph), at_(std::move(at)), base_(graph::evaluate_nodes<double>(graph, at_)) {}

  const std::vector<double>& base() const { return base_; }

  std::vector<double> results(std::span<const double> arguments) const {
    std::vector<double> values(graph_.size());
    for (graph::Id id = 0; id < graph_.size(); ++id) values[id] = node(id, arguments, values);
    std::vector<double> results;
    for (const graph::Id result : graph_.results()) results.push_back(values[result]);
    return results;
  }

  struct Slope {
    double value = 0;
    bool is_sure = false;  // no kink nearby, and finite
  };

  // d(Σ_k weights_k result_k) / d argument, by central differences.
  Slope slope(std::size_t argument, std::span<const double> weights) const {
    const auto weighted = [&](double shift) { return weighted_sum(argument, weights, shift); };
    // Fourth order; the error is about width^4 of the fifth derivative.
    const auto difference = [&](double width) {
      return (8 * (weighted(width) - weighted(-width)) - (weighted(2 * width) - weighted(-2 * width))) / (12 * width);
    };
    const double coarse = difference(2e-3), fine = difference(1e-3);
    const double scale = std::max(1., std::abs(fine));
    // Comparing differences of two widths does not detect a kink at the point itself, for example with slopes 1 and -1.
    constexpr double near = 1e-5;
    const double bend = (weighted(near) - 2 * weighted(0) + weighted(-near)) / near;
    const bool is_smooth = std::abs(coarse - fine) <= 1e-7 * scale && std::abs(bend) <= 1e-3 * scale;
    return {fine, std::isfinite(fine) && scale < 1e6 && is_smooth};
  }

 private:
  using Op = graph::Op;

  double node(graph::Id id, std::span<const double> arguments, const std::vector<double>& values) const {
    const graph::Node& node = graph_[id];
    const auto x = [&](std::size_t i) { return values[node.operands[i]]; };
    const auto x0 = [&](std::size_t i) { return base_[node.operands[i]]; };
    switch (node.op) {
      case Op::argument: return arguments[id];
      case Op::spike:
      case Op::spike_strict: {
        const double u0[] = {x0(0)};
        const graph::Node slope{.op = Op::surrogate_gradient, .operands = {}, .number = 0, .surrogate = node.surrogate};
        return base_[id] + graph::evaluate_node<double>(slope, u0) * (x(0) - x0(0));
      }
      case Op::select: return (x0(0) == 1 ? x(1) : x(2)) + (x0(1) - x0(2)) * (x(0) - x0(0));
      case Op::where: return x0(0) != 0 ? x(1) : x(2);
      case Op::detach: return base_[id];
      case Op::add_gradient: return x(0) + x0(2) * (x(1) - x0(1));
      default: {
        if (graph_.kind(id) == graph::Kind::boolean) return base_[id];
        std::vector<double> operands;
        for (const graph::Id operand : graph_.operands(id)) operands.push_back(values[operand]);
        return graph::evaluate_node<double>(node, operands);
      }
    }
  }

  double weighted_sum(std::size_t argument, std::span<const double> weights, double shift) const {
    std::vector<double> arguments = at_;
    arguments[argument] += shift;
    const std::vector<double> values = results(arguments);
    double sum = 0;
    for (std::size_t k = 0; k < values.size(); ++k) sum += weights[k] * values[k];
    return sum;
  }

  const graph::Graph& graph_;
  std::vector<double> at_;
  std::vector<double> base_;
};

}  // namespace spikeforge::test
