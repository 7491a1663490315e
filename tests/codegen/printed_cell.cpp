// Compares printed cells, compiled by the host's compiler, with the evaluation of their graphs.
#include "csrc/autodiff/vjp.h"
#include "csrc/codegen/cell_printer.h"
#include "csrc/graph/internal/evaluate.h"

#include "tests/catch.h"
#include "tests/codegen/gallery.h"
#include "tests/codegen/host_compiler.h"
#include "tests/graph/bits.h"
#include "tests/graph/numbers.h"
#include "tests/graph/random_graph.h"

#include <dlfcn.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace spikeforge::test {
namespace {

using autodiff::Stages;
using graph::Cell;

template <class F> struct StepOf {  // the arguments of one step
  Numbers<F> params, x, state, grad_y, grad_next;

  StepOf(const Stages& stages, Dice& dice, bool is_tame) {
    const auto some = [&](std::size_t count) {
      Numbers<F> numbers;
      static const Numbers<F> hard = hard_numbers<F>();
      for (std::size_t i = 0; i < count; ++i)
        numbers.push_back(is_tame || dice.chance(.5) ? F(dice.uniform(-2, 2)) : dice.of(hard));
      return numbers;
    };
    params = some(stages.params);
    x = some(stages.inputs);
    state = some(stages.states);
    grad_y = some(stages.outputs);
    grad_next = some(stages.states);
  }
};

// All results of the functions of a cell, in this order: initial states; outputs, next states; gradients of inputs,
// states, and, after two equal steps, parameters.
template <class F> Numbers<F> by_evaluation(const Cell& cell, const Stages& stages, const StepOf<F>& given) {
  Numbers<F> all;
  for (const graph::State& state : cell.signature().states) all.push_back(static_cast<F>(state.initial));
  const auto evaluated = [](const graph::Graph& graph, const Numbers<F>& arguments) {
    return graph::evaluate<F>(graph, std::span<const F>(arguments));
  };
  const Numbers<F> hoisted = evaluated(stages.prologue, given.params);
  const Numbers<F> at_step = joined<F>({given.x, given.state, hoisted});
  const Numbers<F> next = evaluated(stages.step, at_step);
  const Numbers<F> grads = evaluated(stages.backward, joined<F>({at_step, given.grad_y, given.grad_next}));
  Numbers<F> sums;
  for (std::size_t k = stages.inputs + stages.states; k < grads.size(); ++k)
    sums.push_back(autodiff::is_zero(stages.backward, k) ? F(0) : F(0) + grads[k] + grads[k]);
  const auto of_a_step = grads.begin() + static_cast<std::ptrdiff_t>(stages.inputs + stages.states);
  return joined<F>(
      {all, next, Numbers<F>(grads.begin(), of_a_step), evaluated(stages.epilogue, joined<F>({given.params, sums}))});
}

// The source that calls a printed cell, in C++17 as the cell itself.
constexpr const char* harness = R"(
template <template <class> class Cell, class F>
void run(const F* p, const F* x, const F* state, const F* grad_y, const F* grad_next, F* out) {
  using namespace spikeforge;
  constexpr int I = Cell<F>::n_inputs, O = Cell<F>::n_outputs, S = Cell<F>::n_states, P = Cell<F>::n_params;
  const Cell<F> cell(p, NoSurrogate<F>(nullptr), NoOptions{});
  F next[S + 1], grad_state[S + 1], grad_param[P + 1] = {};
  cell.initial(out);
  out += S;
  for (int s = 0; s < S; ++s) next[s] = state[s];
  cell.step(x, next, out);
  out += O;
  for (int s = 0; s < S; ++s) *out++ = next[s];
  for (int k = 0; k < 2; ++k) {
    for (int s = 0; s < S; ++s) grad_state[s] = grad_next[s];
    F c[Cell<F>::n_coefficients + 1];
    if (k == 1) cell.coefficients(x, state, c);
    if (k == 0) cell.vjp(x, state, grad_y, grad_state, out, grad_param);
    if (k == 1) cell.vjp(c, grad_y, grad_state, out, grad_param);  // in two parts, with the same bits
  }
  out += I;
  for (int s = 0; s < S; ++s) *out++ = grad_state[s];
  cell.finish(nullptr, grad_param);
  for (int j = 0; j < P; ++j) *out++ = grad_param[j];
}
)";

std::string source_of(const std::vector<Cell>& cells) {
  std::ostringstream source;
  source << "#include <spikeforge/neuron/functions.h>\n#include <spikeforge/neuron/options.h>\n" << harness;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    source << "#define Neuron Neuron" << i << "\n"
           << codegen::print_cell(cells[i], autodiff::stages_of(cells[i])) << "#undef Neuron\n";
    for (const char* type : {"float", "double"})
      source << "extern \"C\" void run_" << i << "_" << type << "(const " << type << "* p, const " << type
             << "* x, const " << type << "* state, const " << type << "* grad_y, const " << type << "* grad_next, "
             << type << "* out) {\n  run<spikeforge::Neuron" << i << ">(p, x, state, grad_y, grad_next, out);\n}\n";
  }
  return source.str();
}

class Compiled {
 public:
  explicit Compiled(const std::vector<Cell>& cells)
      : code_(source_of(cells), "-Wall -Wextra -Werror -Wno-unused-parameter") {}

  template <class F> Numbers<F> run(std::size_t cell, const Stages& stages, const StepOf<F>& given) const {
    const std::string name = "run_" + std::to_string(cell) + (sizeof(F) == 4 ? "_float" : "_double");
    auto* const function = code_.function<void(const F*, const F*, const F*, const F*, const F*, F*)>(name);
    Numbers<F> out(3 * stages.states + stages.outputs + stages.inputs + stages.params);
    function(given.params.data(), given.x.data(), given.state.data(), given.grad_y.data(), given.grad_next.data(),
             out.data());
    return out;
  }

 private:
  HostCompiled code_;
};

template <class F> void compare(const Compiled& compiled, std::size_t i, const Cell& cell, bool is_tame) {
  const Stages stages = autodiff::stages_of(cell);
  Dice dice(i);
  for (int trial = 0; trial < 30; ++trial) {
    const StepOf<F> given(stages, dice, is_tame);
    const Numbers<F> expected = by_evaluation(cell, stages, given);
    const Numbers<F> values = compiled.run(i, stages, given);
    if (same_bits(values, expected)) continue;
    std::string differing;
    for (std::size_t k = 0; k < values.size(); ++k)
      if (!same_bits(values[k], expected[k]))
        differing += "\n  value " + std::to_string(k) + " is " + std::to_string(values[k]) + ", expected " +
                     std::to_string(expected[k]);
    FAIL_CHECK("cell " << i << ", trial " << trial << ", " << sizeof(F) * 8 << " bits:" << differing << "\n"
                       << graph::print(cell) << codegen::print_cell(cell, stages));
    return;
  }
}

void check(const std::vector<Cell>& cells, bool is_tame) {
  const Compiled compiled(cells);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    compare<float>(compiled, i, cells[i], is_tame);
    compare<double>(compiled, i, cells[i], is_tame);
  }
}

}  // namespace

TEST_CASE("printed random cells give the bits of their graphs") {
  std::vector<Cell> cells;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) cells.push_back(random_cell(seed, {.has_names = true}));
  check(cells, true);
}

TEST_CASE("printed random cells give the bits of their graphs on infinities, NaN and zeros") {
  std::vector<Cell> cells;
  for (std::uint64_t seed = 1001; seed <= 1100; ++seed)
    cells.push_back(random_cell(seed, {.is_tame = false, .has_names = true}));
  check(cells, false);
}

TEST_CASE("the printed neurons of the gallery give the bits of their graphs") {
  std::vector<Cell> cells;
  for (const auto& [name, text] : gallery()) cells.push_back(graph::parse(text));
  REQUIRE(cells.size() >= 11);
  check(cells, true);
}

// Checks layout and names. After an intended change of the printer, run with SPIKEFORGE_WRITE_GOLDEN=1 to regenerate
// the file, and review its diff.
TEST_CASE("the printed cell of a neuron is the golden text") {
  const graph::Cell cell = graph::parse(gallery().at("lif"));
  const std::string printed = codegen::print_cell(cell, autodiff::stages_of(cell));
  const std::filesystem::path path = std::filesystem::path(SPIKEFORGE_TEST_GOLDEN) / "lif.txt";
  if (std::getenv("SPIKEFORGE_WRITE_GOLDEN")) std::ofstream(path) << printed;
  INFO(path << "; SPIKEFORGE_WRITE_GOLDEN=1 writes it anew");
  CHECK(printed == read_file(path));
}

}  // namespace spikeforge::test
