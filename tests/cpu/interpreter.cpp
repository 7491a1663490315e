// Compares the CPU's interpreter of traced cells with graph::evaluate for each number, for every instruction set.
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/cpu/run_interpreter.h"

#include <cstdio>
#include <set>

namespace spikeforge::test {
namespace {

// A plain loop over the steps, forward and backward, as the reference.
template <class F> Outcome<F> run_slowly(const graph::Cell& cell, const Numbers<F>& at) {
  const graph::Graph vjp = autodiff::vjp(cell.graph());
  Outcome<F> outcome = empty_outcome<F>(cell);
  for (std::size_t n = 0; n < neurons; ++n) {
    Rows<F> arguments;
    std::vector<F> states, grad;
    for (const auto& row : at.states) states.push_back(row[n]);
    for (std::size_t t = 0; t < steps; ++t) {
      std::vector<F> given;
      for (const auto& row : at.inputs) given.push_back(row[t * neurons + n]);
      given.insert(given.end(), states.begin(), states.end());
      for (const auto& row : at.params) given.push_back(row[n]);
      const std::vector<F> results = graph::evaluate<F>(cell.graph(), given);
      for (std::size_t k = 0; k < cell.output_count(); ++k) outcome.outputs[k][t * neurons + n] = results[k];
      states.assign(results.begin() + static_cast<std::ptrdiff_t>(cell.output_count()), results.end());
      arguments.push_back(given);
    }
    for (std::size_t s = 0; s < states.size(); ++s) outcome.states[s][n] = states[s];
    for (const auto& row : at.grad_states) grad.push_back(row[n]);
    for (std::size_t t = steps; t-- > 0;) {
      std::vector<F> given = arguments[t];
      for (const auto& row : at.grad_outputs) given.push_back(row[t * neurons + n]);
      given.insert(given.end(), grad.begin(), grad.end());
      const std::vector<F> results = graph::evaluate<F>(vjp, given);
      for (std::size_t i = 0; i < cell.input_count(); ++i) outcome.grad_inputs[i][t * neurons + n] = results[i];
      for (std::size_t s = 0; s < grad.size(); ++s) grad[s] = results[cell.input_count() + s];
      for (std::size_t j = 0; j < cell.param_count(); ++j)
        outcome.grad_params[j][n] += results[cell.input_count() + grad.size() + j];
    }
    for (std::size_t s = 0; s < grad.size(); ++s) outcome.grad_initial[s][n] = grad[s];
  }
  return outcome;
}

struct InstructionSet {
  const char* name;
  cpu::Loop (*loop_of)(DType);
};

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{{"default", cpu::traced_loop_default}};
#if SPIKEFORGE_CPU_VARIANTS == 3
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back({"avx2", cpu::traced_loop_avx2});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    sets.push_back({"avx512", cpu::traced_loop_avx512});
#endif
  return sets;
}

// Returns how many numbers differ. Large numbers may differ by `bound` times their size.
template <class F> struct Difference {
  std::size_t wrong = 0, compared = 0, telling = 0;  // telling: neither 0 nor infinite in the reference

  void add(const Rows<F>& actual, const Rows<F>& expected, double bound) {
    for (std::size_t i = 0; i < expected.size(); ++i)
      for (std::size_t k = 0; k < expected[i].size(); ++k) {
        const double a = actual[i][k], b = expected[i][k];
        ++compared;
        telling += std::isfinite(b) && b != 0;
        if (std::isnan(a) && std::isnan(b)) continue;
        if (bound == 0 ? a != b || std::signbit(a) != std::signbit(b)
                       : !(a == b || std::abs(a - b) <= bound * std::max(1., std::abs(b))))
          ++wrong;
      }
  }
};

bool is_exact(const graph::Graph& graph) {
  static const std::set<graph::Op> inexact = [] {
    std::set<graph::Op> all;
    using graph::Op;
    for (const Op op :
         {Op::exp, Op::expm1,   Op::exp2,     Op::log,  Op::log1p, Op::log2, Op::sin,   Op::cos,
          Op::tan, Op::asin,    Op::acos,     Op::atan, Op::sinh,  Op::cosh, Op::tanh,  Op::erf,
          Op::pow, Op::sigmoid, Op::softplus, Op::gelu, Op::silu,  Op::elu,  Op::atan2, Op::surrogate_gradient})
      all.insert(op);
    return all;
  }();
  const std::vector<bool> live = live_nodes(graph);
  for (graph::Id id = 0; id < graph.size(); ++id)
    if (live[id] && inexact.count(graph[id].op)) return false;
  return true;
}

template <class F> void compare_all(double bound, double gradient_bound) {
  Difference<F> forward, backward, exact;
  int exact_cells = 0;
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    const graph::Cell cell = random_cell(seed, {.operations = seed % 2 == 0 ? 24 : 8});
    const TracedCell traced(print(cell));
    const Numbers<F> at = random_numbers<F>(cell, seed);
    const Outcome<F> expected = run_slowly<F>(cell, at);
    const bool has_same_bits = is_exact(cell.graph());
    exact_cells += has_same_bits;
    for (const auto& [name, loop_of] : instruction_sets())
      for (const std::int64_t tile : {neurons, std::int64_t{64}}) {
        INFO("seed " << seed << ", " << name << ", tiles of " << tile << "\n" << traced.text);
        const Outcome<F> actual = run_interpreter<F>(loop_of, traced, at, tile);
        if (has_same_bits) {
          Difference<F> here;
          here.add(actual.outputs, expected.outputs, 0);
          here.add(actual.states, expected.states, 0);
          REQUIRE(here.wrong == 0);
        }
        forward.add(actual.outputs, expected.outputs, bound);
        forward.add(actual.states, expected.states, bound);
        backward.add(actual.grad_inputs, expected.grad_inputs, gradient_bound);
        backward.add(actual.grad_initial, expected.grad_initial, gradient_bound);
        backward.add(actual.grad_params, expected.grad_params, gradient_bound);
      }
  }
  std::printf("%s: of %zu and %zu numbers, forward and backward, %zu and %zu differ; %d cells to the bit\n",
              sizeof(F) == 8 ? "float64" : "float32", forward.compared, backward.compared, forward.wrong,
              backward.wrong, exact_cells);
  // Reasons: rounding crosses a threshold, or two large numbers are subtracted.
  CHECK(double(forward.wrong) < .01 * double(forward.compared));
  CHECK(double(backward.wrong) < .01 * double(backward.compared));
  CHECK(2 * forward.telling > forward.compared);
  CHECK(8 * backward.telling > backward.compared);  // the others are 0: gradients of unused arguments
  CHECK(exact_cells > 20);
}

}  // namespace

TEST_CASE("the interpreter evaluates a graph forward and backward in float64") { compare_all<double>(1e-10, 1e-8); }

TEST_CASE("the interpreter evaluates a graph forward and backward in float32") { compare_all<float>(1e-4, 1e-2); }

TEST_CASE("a tape uses few temporaries, and copies results that are arguments, constants or equal") {
  const graph::Cell cell = graph::parse(
      "neuron n(x; v, w, u) { a = x + 1; b = a * a; c = b - x; d = c * 2; return d, d\n v' = w; w' = 3; u' = v }");
  const TracedCell traced(print(cell));
  CHECK(cpu::tape_of(traced.stages.step).temporaries <= 1);
  const Numbers<double> at = random_numbers<double>(cell, 1);
  for (const auto& [name, loop_of] : instruction_sets()) {
    INFO(name);
    const Outcome<double> actual = run_interpreter<double>(loop_of, traced, at, 64);
    const Outcome<double> expected = run_slowly<double>(cell, at);
    CHECK(actual.outputs == expected.outputs);
    CHECK(actual.states == expected.states);
    CHECK(actual.grad_inputs == expected.grad_inputs);
    CHECK(actual.grad_initial == expected.grad_initial);
  }
}

}  // namespace spikeforge::test
