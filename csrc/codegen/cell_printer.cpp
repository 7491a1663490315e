#include "csrc/codegen/cell_printer.h"
#include "csrc/autodiff/stages.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/codegen/lines.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/multiply_adds.h"
#include "csrc/graph/internal/number_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge::codegen {
namespace {

using graph::Graph;
using graph::Id;
using graph::Node;
using graph::Op;

std::string literal(double number) {
  if (std::isnan(number)) return "not_a_number<F>()";
  if (std::isinf(number)) return number < 0 ? "-infinity<F>()" : "infinity<F>()";
  if (number == 0 && std::signbit(number)) return "F(-0.0)";  // -0 is an integer
  return fmt::format("F({})", graph::text_of(number));
}

std::string surrogate_gradient(const std::string& u, const graph::Surrogate& surrogate) {
  if (!surrogate.kind) return "F(0)";
  std::string args;
  for (std::size_t i = 0; i < graph::describe(*surrogate.kind).args.size(); ++i)
    args += ", " + graph::text_of(surrogate.args[i]);
  return fmt::format("surrogate_gradient<{}>({}{})", struct_of(*surrogate.kind), u, args);
}

// Returns one operation on operands that are names or literals.
std::string expression(const Node& node, const std::array<std::string, graph::most_operands>& x) {
  const graph::OpInfo& known = graph::info(node.op);
  switch (node.op) {
    case Op::logical_or: return fmt::format("either({}, {})", x[0], x[1]);
    case Op::logical_and: return fmt::format("both({}, {})", x[0], x[1]);
    case Op::logical_not: return fmt::format("inverse({})", x[0]);
    case Op::neg: return "-" + x[0];
    case Op::reciprocal: return "F(1) / " + x[0];
    case Op::rsqrt: return fmt::format("F(1) / sqrt({})", x[0]);
    case Op::sigmoid: return fmt::format("logistic({})", x[0]);
    case Op::round: return fmt::format("rint({})", x[0]);
    case Op::where: return fmt::format("select({}, {}, {})", x[0], x[1], x[2]);
    case Op::surrogate_gradient: return surrogate_gradient(x[0], node.surrogate);
    default: break;
  }
  if (known.form == graph::Form::infix) return fmt::format("{} {} {}", x[0], known.text, x[1]);
  if (known.form != graph::Form::call || node.op == Op::select || node.op == Op::detach || node.op == Op::add_gradient)
    throw std::logic_error(fmt::format("print_cell: {} is not plain arithmetic", known.name));
  // Every other operation is a function with its name.
  return fmt::format("{}({})", known.name, fmt::join(x.begin(), x.begin() + known.arity, ", "));
}

// Prints the statements of a graph, or of the nodes on which `results` depend. `sources` are the expressions of its
// arguments, and optionally of other nodes; a node with an empty expression is computed.
class Body {
 public:
  Body(Lines& line, const Graph& graph, const std::vector<std::string>& sources, graph::MultiplyAdds multiply_adds = {})
      : Body(line, graph, graph.results(), sources, std::move(multiply_adds)) {}

  Body(Lines& line, const Graph& graph, std::span<const Id> results, const std::vector<std::string>& sources,
       graph::MultiplyAdds multiply_adds)
      : graph_(graph), multiply_adds_(std::move(multiply_adds)) {
    std::vector<bool> is_given(graph.size());
    for (Id id = 0; id < std::min(graph.size(), sources.size()); ++id) is_given[id] = !sources[id].empty();
    const std::vector<bool> needed = multiply_adds_.live_nodes(graph, results, is_given);
    for (Id id = 0; id < graph.size(); ++id) {
      if (!needed[id] || is_literal(id)) continue;
      const bool is_boolean = graph.kind(id) == graph::Kind::boolean;
      line("    const {} v{} = {};{}", is_boolean ? "auto" : "F", id, is_given[id] ? sources[id] : value(id),
           comment(id));
    }
  }

  // Returns a result as a name or a literal.
  std::string result(std::size_t i) const { return name(graph_.results()[i]); }

  std::string name(Id id) const {
    if (graph_.is(id, Op::constant)) return literal(graph_[id].number);
    if (graph_.is(id, Op::truth)) return graph_[id].number != 0 ? "true" : "false";
    return fmt::format("v{}", id);
  }

 private:
  bool is_literal(Id id) const { return graph_.is(id, Op::constant) || graph_.is(id, Op::truth); }

  std::string negated(Id id) const {
    return graph_.is(id, Op::constant) ? literal(-graph_[id].number) : fmt::format("-{}", name(id));
  }

  std::string value(Id id) const {
    if (const std::optional<std::size_t> product = multiply_adds_.product_in(id)) return multiply_add(id, *product);
    if (is_draw(graph_[id].op)) return draw(id);
    std::array<std::string, graph::most_operands> operands;
    for (std::size_t i = 0; i < graph_.operands(id).size(); ++i) operands[i] = name(graph_.operands(id)[i]);
    return expression(graph_[id], operands);
  }

  // Returns the call of the draw's distribution, with the random bits and the operands.
  std::string draw(Id id) const {
    const Node& node = graph_[id];
    std::vector<std::string> operands;
    for (std::uint32_t word = node.draw.number; word < node.draw.number + graph::info(node.op).words; ++word)
      operands.push_back(fmt::format("drawn_bits<F>(draws, {}, {})", node.draw.once, word));
    for (const Id x : graph_.operands(id)) operands.push_back(name(x));
    return fmt::format("{}({})", graph::info(node.op).name, fmt::join(operands, ", "));
  }

  // Returns the expression of a b + c, c + a b, a b - c or c - a b.
  std::string multiply_add(Id id, std::size_t product) const {
    const std::vector<Id> x = multiply_adds_.sources(graph_, id);
    const bool subtracts = graph_.is(id, Op::subtract);
    return fmt::format("fma({}, {}, {})", subtracts && product == 1 ? negated(x[0]) : name(x[0]), name(x[1]),
                       subtracts && product == 0 ? negated(x[2]) : name(x[2]));
  }

  std::string comment(Id id) const {
    const std::string& name = graph_.name(id);
    return graph::is_name(name) ? "  // " + name : "";
  }

  const Graph& graph_;
  const graph::MultiplyAdds multiply_adds_;
};

class CellPrinter {
 public:
  CellPrinter(const graph::Cell& cell, const autodiff::Stages& stages)
      : cell_(cell),
        stages_(stages),
        draws_(graph::draws(cell.graph())),
        coefficients_(autodiff::coefficients(stages)),
        finish_reads_(live_nodes(stages.epilogue)),
        slots_(stages.factors) {
    std::size_t used = 0;
    for (std::size_t k = 0; k < stages.factors; ++k)
      if (!autodiff::is_zero(stages.backward, first_factor() + k)) slots_[k] = fmt::format("grad_param[{}]", used++);
  }

  std::string print() {
    if (draws_) line("#include <spikeforge/neuron/draws.h>");
    line("#include <spikeforge/neuron/functions.h>");
    line("#include <spikeforge/neuron/options.h>");
    line("");
    line("namespace spikeforge {{");
    line("// {}({})", cell_.name(), text_of(cell_.signature()));
    line("template <class F>");
    line("struct Neuron {{");
    line("  static constexpr int n_inputs = {}, n_outputs = {}, n_states = {}, n_params = {};", stages_.inputs,
         stages_.outputs, stages_.states, stages_.params);
    line("  static constexpr bool mixes_params = true;");
    if (draws_) line("  static constexpr bool draws = true;");
    if (!draws_) line("  static constexpr int n_coefficients = {};", coefficients_.size());
    constructor();
    initial();
    step();
    vjp();
    if (!draws_) {
      coefficients();
      vjp_of_coefficients();
    }
    finish();
    members();
    line("}};");
    line("}}  // namespace spikeforge");
    return line.take();
  }

 private:
  void constructor() {
    line("");
    line("  SPIKEFORGE_FN Neuron(const F* p, const NoSurrogate<F>&, NoOptions{}) {{", draws_argument());
    const Body body(line, stages_.prologue, list("p", stages_.params));
    for (std::size_t k = 0; k < stages_.hoisted; ++k) line("    hoisted_{} = {};", k, body.result(k));
    for (std::size_t j = 0; j < stages_.params; ++j)
      if (finish_reads_[j]) line("    param_{} = p[{}];", j, j);
    line("  }}");
  }

  void initial() {
    line("");
    line("  SPIKEFORGE_FN void initial(F* state) const {{");
    for (std::size_t s = 0; s < stages_.states; ++s)
      line("    state[{}] = {};  // {}", s, literal(cell_.signature().states[s].initial),
           cell_.signature().states[s].name);
    line("  }}");
  }

  void step() {
    line("");
    line("  SPIKEFORGE_FN void step(const F* x, F* state, F* y{}) const {{", draws_argument());
    const Body body(line, stages_.step, of_a_step());
    for (std::size_t i = 0; i < stages_.outputs; ++i) line("    y[{}] = {};", i, body.result(i));
    for (std::size_t s = 0; s < stages_.states; ++s) line("    state[{}] = {};", s, body.result(stages_.outputs + s));
    line("  }}");
  }

  void vjp() {
    line("");
    line("  SPIKEFORGE_FN void vjp(const F* x, const F* state, const F* grad_y, F* grad_state, F* grad_x,");
    line("                         F* grad_param{}) const {{", draws_argument());
    gradients(of_a_step_back());
  }

  void coefficients() {
    line("");
    line("  SPIKEFORGE_FN void coefficients(const F* x, const F* state, F* c) const {{");
    const Graph& graph = stages_.backward;
    const Body body(line, graph, coefficients_, of_a_step_back(), graph::MultiplyAdds(graph));
    for (std::size_t i = 0; i < coefficients_.size(); ++i) {
      const std::string name = body.name(coefficients_[i]);
      line("    c[{}] = {};", i, is_boolean(coefficients_[i]) ? fmt::format("select({}, F(1), F(0))", name) : name);
    }
    line("  }}");
  }

  void vjp_of_coefficients() {
    line("");
    line("  SPIKEFORGE_FN void vjp(const F* c, const F* grad_y, F* grad_state, F* grad_x, F* grad_param) const {{");
    std::vector<std::string> sources = of_a_step_back();
    sources.resize(stages_.backward.size());
    for (std::size_t i = 0; i < coefficients_.size(); ++i)
      sources[coefficients_[i]] = fmt::format("c[{}]{}", i, is_boolean(coefficients_[i]) ? " != F(0)" : "");
    gradients(sources);
  }

  bool is_boolean(Id id) const { return stages_.backward.kind(id) == graph::Kind::boolean; }

  // Prints the gradients. A product that is added to a factor's sum is not computed itself: a multiply-add reads its
  // operands.
  void gradients(const std::vector<std::string>& sources) {
    const Graph& graph = stages_.backward;
    const auto is_product = [&](Id id) {
      return graph.is(id, Op::multiply) && (id >= sources.size() || sources[id].empty());
    };
    const auto of_factors = graph.results().subspan(first_factor());
    std::vector<Id> computed(graph.results().begin(), of_factors.begin());
    for (std::size_t k = 0; k < stages_.factors; ++k) {
      if (slots_[k].empty()) continue;
      const std::span<const Id> factors = graph.operands(of_factors[k]);
      if (is_product(of_factors[k]))
        computed.insert(computed.end(), factors.begin(), factors.end());
      else
        computed.push_back(of_factors[k]);
    }

    const Body body(line, graph, computed, sources, graph::MultiplyAdds(graph));
    for (std::size_t i = 0; i < stages_.inputs; ++i) line("    grad_x[{}] = {};", i, body.result(i));
    for (std::size_t s = 0; s < stages_.states; ++s)
      line("    grad_state[{}] = {};", s, body.result(stages_.inputs + s));
    for (std::size_t k = 0; k < stages_.factors; ++k) {
      if (slots_[k].empty()) continue;
      const Id id = of_factors[k];
      if (is_product(id))
        line("    {0} = fma({1}, {2}, {0});", slots_[k], body.name(graph.operands(id)[0]),
             body.name(graph.operands(id)[1]));
      else
        line("    {0} = {0} + {1};", slots_[k], body.name(id));
    }
    line("  }}");
  }

  void finish() {
    line("");
    line("  SPIKEFORGE_FN void finish(const F* grad_initial, F* grad_param{}) const {{", draws_argument());
    std::vector<std::string> sources = numbered("param_", stages_.params);
    append(sources, slots_);
    const Body body(line, stages_.epilogue, sources);
    for (std::size_t j = 0; j < stages_.params; ++j) line("    grad_param[{}] = {};", j, body.result(j));
    line("  }}");
  }

  void members() {
    line("");
    line(" private:");
    for (std::size_t k = 0; k < stages_.hoisted; ++k) line("  F hoisted_{};", k);
    for (std::size_t j = 0; j < stages_.params; ++j)
      if (finish_reads_[j]) line("  F param_{};  // {}", j, cell_.signature().params[j]);
  }

  std::string_view draws_argument() const { return draws_ ? ", const Draws& draws" : ""; }

  std::size_t first_factor() const { return stages_.inputs + stages_.states; }

  std::vector<std::string> of_a_step() const {
    std::vector<std::string> sources = list("x", stages_.inputs);
    append(sources, list("state", stages_.states));
    append(sources, numbered("hoisted_", stages_.hoisted));
    return sources;
  }

  std::vector<std::string> of_a_step_back() const {
    std::vector<std::string> sources = of_a_step();
    append(sources, list("grad_y", stages_.outputs));
    append(sources, list("grad_state", stages_.states));
    return sources;
  }

  static std::vector<std::string> list(std::string_view array, std::size_t count) {
    std::vector<std::string> items;
    for (std::size_t i = 0; i < count; ++i) items.push_back(fmt::format("{}[{}]", array, i));
    return items;
  }

  static std::vector<std::string> numbered(std::string_view stem, std::size_t count) {
    std::vector<std::string> items;
    for (std::size_t i = 0; i < count; ++i) items.push_back(fmt::format("{}{}", stem, i));
    return items;
  }

  static void append(std::vector<std::string>& to, const std::vector<std::string>& items) {
    to.insert(to.end(), items.begin(), items.end());
  }

  const graph::Cell& cell_;
  const autodiff::Stages& stages_;
  const bool draws_;
  const std::vector<Id> coefficients_;
  std::vector<bool> finish_reads_;  // for each argument of the epilogue
  std::vector<std::string> slots_;  // the sum of the gradient of each factor; empty: it is 0
  Lines line;                       // called as a function
};

}  // namespace

std::vector<std::string> print_body(Lines& line, const Graph& graph, const std::vector<std::string>& sources) {
  const Body body(line, graph, sources);
  std::vector<std::string> results;
  for (std::size_t i = 0; i < graph.results().size(); ++i) results.push_back(body.result(i));
  return results;
}

std::string print_cell(const graph::Cell& cell, const autodiff::Stages& stages) {
  return CellPrinter(cell, stages).print();
}

}  // namespace spikeforge::codegen
