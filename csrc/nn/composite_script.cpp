// A network in TorchScript: its plan, written as statements.
#include "csrc/nn/composite.h"
#include "csrc/nn/internal/step_of.h"

#include <algorithm>
#include <functional>
#include <set>

namespace spikeforge::nn {
namespace {

// Generates the call of a torch layer once per step, on memory aligned as that of a new tensor (part.h).
std::string each_step(const std::string& method, const std::string& part) {
  return "\ndef " + method + "(self, x: Tensor) -> Tensor:\n" +  //
         "  rows: List[Tensor] = []\n" +                         //
         "  for row in x.unbind(0):\n" +                         //
         "    rows.append(" + script::member(part) + ".forward(row.clone()))\n" + "  return torch.stack(rows)\n";
}

// Returns the sequence that arrives through a connection, and the values in flight afterwards.
const char* const later = R"(
def later(self, sequence: Tensor, line: Tensor, delay: int) -> Tuple[Tensor, Tensor]:
  if line.size() == [0]:
    line = sequence.new_zeros([delay] + sequence.size()[1:])
  assert line.size()[1:] == sequence.size()[1:] and line.dtype == sequence.dtype, "the values in flight through a delay and the input differ in shape or type; call reset() to restart"
  both = torch.cat([line, sequence])
  return both[:sequence.size(0)], both[sequence.size(0):].clone()
)";

// Used within a loop. `lines` are the values in flight, the oldest first; empty at the start.
const char* const sum_of = R"(
def waiting(self, line: Tensor) -> List[Tensor]:
  if line.size() == [0]:
    none: List[Tensor] = []
    return none
  return list(line.split(1))

def moved(self, line: List[Tensor], leaving: Tensor, delay: int) -> List[Tensor]:
  if len(line) == 0:
    for i in range(delay):
      line.append(torch.zeros_like(leaving))
  assert line[0].size() == leaving.size() and line[0].dtype == leaving.dtype, "the values in flight through a delay and the input differ in shape or type; call reset() to restart"
  return line[1:] + [leaving]

def sum_of(self, terms: List[Tensor], lines: List[List[Tensor]]) -> Tensor:
  assert len(terms) > 0, "every input of a part is in flight at the first step, so its shape is unknown; set the shape of one of the connections"
  for line in lines:
    if len(line) > 0:
      for term in terms:
        assert term.size() == line[0].size(), "the values in flight through a delay and the input differ in shape; call reset() to restart"
  total = terms[0]
  for i in range(1, len(terms)):
    total = total + terms[i]
  return total
)";

std::string zeros_of_a_step(const std::string& like, std::vector<std::int64_t> shape) {
  shape.insert(shape.begin(), 1);
  return like + ".new_zeros(" + script::list(shape) + ")";
}

}  // namespace

// Writes run_at_rest as statements. Nested networks are written inline, not called.
class CompositeImpl::RestWriter {
 public:
  // `variable` returns a new variable name close to the requested one. Statements are appended to `body`.
  RestWriter(std::function<std::string(const std::string&)> variable, std::string& body)
      : variable_(std::move(variable)), body_(body) {}

  // Returns the variables of the outputs of all parts before the first step, for these input variables, [1, ...] each.
  std::vector<Names> write(const CompositeImpl& network, const std::string& path, const Names& inputs) {
    if (!network.planned_) network.make_plan();
    std::vector<Names> outputs(network.nodes_.size());
    for (const Stage& stage : network.plan_)
      for (const int n : stage.nodes) {
        const Node& node = network.nodes_[n];
        Names into;
        for (std::size_t port = 0; port < node.inputs.size(); ++port) {
          into.push_back(sum(network, node.edges_into[port], inputs, outputs));
          if (!into.back().empty()) continue;
          const Known<std::string> known = [&](int e) {
            const Port from = network.edges_[e].from;
            if (from.node == outside) return inputs[from.index];
            return outputs[from.node].empty() ? std::string() : outputs[from.node][from.index];
          };
          into.back() = zeros_into(network, stage, node, port, path, known, inputs.empty() ? "" : inputs[0]);
          TORCH_CHECK_VALUE(!into.back().empty(), "the shape of the input of '", node.name, ".", node.inputs[port],
                            "' before the first step is not known; set {.shape = {...}} of one of its connections");
        }
        outputs[n] = part(node, script::member(node.name, path), into);
      }
    return outputs;
  }

  // Writes CompositeImpl::zeros_into. Returns an empty string if the shape is unknown.
  std::string zeros_into(const CompositeImpl& network, const Stage& stage, const Node& node, std::size_t port,
                         const std::string& path, const Known<std::string>& known, const std::string& like) {
    for (const int e : node.edges_into[port]) {
      const std::string sent = network.step_of<std::string>(
          e, stage.nodes, known,
          [&](const Node& n, const Names& into) { return part(n, script::member(n.name, path), into); });
      if (!sent.empty()) return "torch.zeros_like(" + sent + ")";
      if (const auto& shape = network.edges_[e].connection.shape; !shape.empty()) {
        TORCH_CHECK_NOT_IMPLEMENTED(!like.empty(), "a network without an input");
        return zeros_of_a_step(like, shape);
      }
    }
    return {};
  }

 private:
  std::string assign(const std::string& wish, const std::string& value) {
    std::string name = variable_(wish);
    body_ += name + " = " + value + "\n";
    return name;
  }

  static std::string sum(const CompositeImpl& network, const std::vector<int>& edges, const Names& inputs,
                         const std::vector<Names>& outputs) {
    Names terms;
    for (const int e : edges)
      if (const Port from = network.edges_[e].from; network.edges_[e].connection.delay == 0)
        terms.push_back(from.node == outside ? inputs[from.index] : outputs[from.node][from.index]);
    return c10::Join(" + ", terms);
  }

  Names part(const Node& node, const std::string& path, const Names& into) {
    const std::string wish = "rest_of_" + node.name;
    const Stateful* stateful = node.part.stateful();
    if (!stateful)  // as in each_step
      return {assign(wish, "torch.stack([" + path + ".forward(" + arguments(into) + "[0].clone())])")};
    Names results;
    if (const auto* network = dynamic_cast<const CompositeImpl*>(stateful)) {
      const std::vector<Names> outputs = write(*network, path, into);
      for (const auto& edges : network->edges_out_) {
        const std::string value = sum(*network, edges, into, outputs);
        TORCH_CHECK_NOT_IMPLEMENTED(!value.empty(), "what comes out of '", node.name,
                                    "' before the first step has no known shape");
        results.push_back(assign(wish, value));
      }
      return results;
    }
    const bool is_stateless = stateful->state_names().empty() && !stateful->draws();
    const bool is_called = is_stateless || !stateful->script().at_rest.empty();
    if (!is_called) {
      for (std::size_t i = 0; i < node.outputs.size(); ++i)
        results.push_back(assign(wish, "torch.zeros_like(" + into.at(0) + ")"));
      return results;
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) results.push_back(variable_(wish));
    body_ +=
        c10::Join(", ", results) + " = " + path + (is_stateless ? ".forward(" : ".at_rest(") + arguments(into) + ")\n";
    return results;
  }

  static std::string arguments(const Names& into) {
    Names all;
    for (const std::string& value : into) all.push_back("(" + value + ")");
    return c10::Join(", ", all);
  }

  std::function<std::string(const std::string&)> variable_;
  std::string& body_;
};

// Writes forward, section by section in the order of its text, and the methods that it calls.
class CompositeImpl::ForwardWriter {
 public:
  explicit ForwardWriter(const CompositeImpl& network)
      : network_(network),
        script_{.name = network.kind(), .inputs = {}, .outputs = network.outputs_.size()},
        outputs_(network.nodes_.size()) {}

  Script write() {
    name_inputs();
    name_states();
    name_outputs_of_parts();
    write_each_step_methods();
    write_start();
    for (const Stage& stage : network_.plan_) {
      if (stage.is_loop)
        write_loop(stage);
      else
        write_part(stage.nodes[0]);
    }
    write_results();
    if (calls_later_) script_.methods += later;
    if (calls_sum_of_) script_.methods += sum_of;
    return std::move(script_);
  }

 private:
  // Generates names that are unique in a function or a class.
  class Variables {
   public:
    void take(const std::string& name) { given_.insert(name); }
    std::string operator()(const std::string& wish) {
      const std::string base = script::identifier(wish);
      std::string name = base;
      for (int i = 2; !given_.insert(name).second; ++i) name = base + "_" + std::to_string(i);
      return name;
    }

   private:
    std::set<std::string> given_;
  };

  // --- Names

  void name_inputs() {
    const Names& inputs = network_.inputs_;
    for (const std::string& name : inputs) script_.inputs.push_back(variable_(inputs.size() == 1 ? "x" : name));
  }

  void name_states() {
    for (const Node& node : network_.nodes_) member_.take(script::attribute(node.name));
    for (const int e : network_.delayed_) {
      script_.states.push_back(member_(network_.edges_[e].state));
      states_[e] = script::member(script_.states.back());
    }
  }

  void name_outputs_of_parts() {
    for (std::size_t n = 0; n < outputs_.size(); ++n) {
      const Node& node = network_.nodes_[n];
      for (const std::string& output : node.outputs)
        outputs_[n].push_back(variable_(node.outputs.size() == 1 ? node.name : node.name + "_" + output));
    }
  }

  // --- Parts without time

  void write_each_step_methods() {
    for (const Node& node : network_.nodes_) {
      if (node.part.stateful()) {
        functions_.push_back(script::member(node.name) + ".forward");
        continue;
      }
      const std::string name = member_("each_step_" + node.name);
      script_.methods += each_step(name, node.name);
      functions_.push_back("self." + name);
    }
  }

  // --- values in flight at the start, in the resting state

  void write_start() {
    std::vector<int> starting;
    for (const int e : network_.delayed_)
      if (network_.edges_[e].connection.from_rest) starting.push_back(e);
    if (starting.empty()) return;

    std::string start;
    Names zeros, are_empty;
    for (const std::string& input : script_.inputs) {
      zeros.push_back(variable_("silent_" + input));
      start += zeros.back() + " = torch.zeros_like(" + input + ".narrow(0, 0, 1))\n";
    }
    const std::vector<Names> rest = RestWriter(std::ref(variable_), start).write(network_, "self", zeros);
    for (const int e : starting) {
      const Port from = network_.edges_[e].from;
      const std::string& value = from.node == outside ? zeros[from.index] : rest[from.node][from.index];
      are_empty.push_back(states_.at(e) + ".size() == [0]");
      start += "if " + are_empty.back() + ":\n";
      start += "  " + states_.at(e) + " = torch.cat([" + value + "] * " + delay(e) + ")\n";
    }
    line("if " + script_.inputs[0] + ".size(0) > 0 and (" + c10::Join(" or ", are_empty) + "):");
    script_.forward += script::indented(start);
  }

  // --- The parts of a loop, stepped together

  struct Loop {
    std::map<int, std::string> into;          // of connections from outside the loop: their sequences
    std::map<int, std::string> lines;         // of connections within the loop: values in flight
    std::map<std::string, std::string> rows;  // of the outputs of parts: their steps
  };

  void write_loop(const Stage& stage) {
    calls_sum_of_ = true;
    const Loop loop = open_loop(stage);
    const std::string& x = script_.inputs[0];
    line("assert " + x + ".size(0) > 0, \"a loop of connections needs at least one step\"");
    line("for t in range(" + x + ".size(0)):");
    for (const int n : stage.nodes) write_step(loop, stage, n);
    for (const auto& [e, waiting] : loop.lines)
      line("  " + waiting + " = self.moved(" + waiting + ", " + source(e) + ", " + delay(e) + ")");
    close_loop(loop, stage);
  }

  Loop open_loop(const Stage& stage) {
    Loop loop;
    for (const int e : stage.edges_into) loop.into[e] = arriving(e);
    for (const int e : stage.edges_within) {
      if (network_.edges_[e].connection.delay == 0) continue;
      loop.lines[e] = variable_("line_" + source(e));
      line(loop.lines[e] + " = self.waiting(" + states_.at(e) + ")");
    }
    for (const int n : stage.nodes)
      for (const std::string& output : outputs_[n]) {
        loop.rows[output] = variable_("rows_" + output);
        line(loop.rows[output] + ": List[Tensor] = []");
      }
    return loop;
  }

  void write_step(const Loop& loop, const Stage& stage, int n) {
    Names arguments;
    for (std::size_t port = 0; port < network_.nodes_[n].inputs.size(); ++port)
      arguments.push_back(sum_in_loop(loop, stage, n, port));
    line("  " + call(n, arguments));
    for (const std::string& output : outputs_[n]) line("  " + loop.rows.at(output) + ".append(" + output + ")");
  }

  // Returns the expression of the input of a port at step t.
  std::string sum_in_loop(const Loop& loop, const Stage& stage, int n, std::size_t port) {
    const Node& node = network_.nodes_[n];
    const std::string terms = variable_("into_" + node.name);
    line("  " + terms + ": List[Tensor] = []");
    Names waiting;
    for (const int e : node.edges_into[port]) {
      write_term(loop, e, terms);
      if (loop.lines.contains(e)) waiting.push_back(loop.lines.at(e));
    }
    if (waiting.size() == node.edges_into[port].size()) write_zeros(loop, stage, n, port, terms);
    std::string lists = "[" + c10::Join(", ", waiting) + "]";
    if (waiting.empty()) {  // TorchScript cannot infer the type of an empty list
      lists = variable_("no_lines");
      line("  " + lists + ": List[List[Tensor]] = []");
    }
    return "self.sum_of(" + terms + ", " + lists + ")";
  }

  void write_term(const Loop& loop, int e, const std::string& terms) {
    const Connection& connection = network_.edges_[e].connection;
    const std::string append = terms + ".append(";
    if (loop.into.contains(e)) return line("  " + append + loop.into.at(e) + ".narrow(0, t, 1))");
    if (connection.delay == 0) return line("  " + append + source(e) + ")");
    line("  if len(" + loop.lines.at(e) + ") > 0:");
    line("    " + append + loop.lines.at(e) + "[0])");
  }

  // Writes zeros for an input whose values may all still be in flight.
  void write_zeros(const Loop& loop, const Stage& stage, int n, std::size_t port, const std::string& terms) {
    const auto own = std::find(stage.nodes.begin(), stage.nodes.end(), n);
    const Known<std::string> known = [&](int e) {
      if (loop.into.contains(e)) return loop.into.at(e) + ".narrow(0, t, 1)";
      return std::find(stage.nodes.begin(), own, network_.edges_[e].from.node) == own ? std::string() : source(e);
    };
    std::string body;
    const std::string zeros =
        RestWriter(std::ref(variable_), body)
            .zeros_into(network_, stage, network_.nodes_[n], port, "self", known, script_.inputs[0]);
    if (zeros.empty()) return;
    line("  if len(" + terms + ") == 0:");
    script_.forward += script::indented(script::indented(body));
    line("    " + terms + ".append(" + zeros + ")");
  }

  // Ends a loop: from here on the variable of a part holds its sequence.
  void close_loop(const Loop& loop, const Stage& stage) {
    for (const auto& [e, waiting] : loop.lines) line(states_.at(e) + " = torch.cat(" + waiting + ")");
    for (const int n : stage.nodes)
      for (std::string& output : outputs_[n]) {
        const std::string sequence = variable_("all_" + output);
        line(sequence + " = torch.cat(" + loop.rows.at(output) + ")");
        output = sequence;
      }
  }

  // --- Parts outside loops, and results: all steps at once

  void write_part(int n) {
    Names arguments;
    for (const auto& edges : network_.nodes_[n].edges_into) arguments.push_back(sum(edges));
    line(call(n, arguments));
  }

  void write_results() {
    Names results;
    for (const auto& edges : network_.edges_out_) results.push_back(sum(edges));
    line("return " + c10::Join(", ", results));
  }

  // Returns the sum of the values of the connections, in the order in which they were added.
  std::string sum(const std::vector<int>& edges) {
    Names terms;
    for (const int e : edges) terms.push_back(arriving(e));
    return c10::Join(" + ", terms);
  }

  std::string arriving(int e) {
    if (network_.edges_[e].connection.delay == 0) return source(e);
    calls_later_ = true;
    std::string name = variable_("later_" + source(e));
    const std::string& state = states_.at(e);
    line(name + ", " + state + " = self.later(" + source(e) + ", " + state + ", " + delay(e) + ")");
    return name;
  }

  // --- Pieces

  void line(const std::string& text) { script_.forward += text + "\n"; }

  std::string call(int n, const Names& arguments) const {
    return c10::Join(", ", outputs_[n]) + " = " + functions_[n] + "(" + c10::Join(", ", arguments) + ")";
  }

  // Returns the variable of the source of a connection.
  const std::string& source(int e) const {
    const Port from = network_.edges_[e].from;
    return from.node == outside ? script_.inputs[from.index] : outputs_[from.node][from.index];
  }

  std::string delay(int e) const { return std::to_string(network_.edges_[e].connection.delay); }

  const CompositeImpl& network_;
  Script script_;
  Variables variable_, member_;        // of forward, and of the class
  std::map<int, std::string> states_;  // of connections with a delay
  std::vector<Names> outputs_;         // the variables of the parts
  Names functions_;                    // the function that calls each part
  bool calls_later_ = false, calls_sum_of_ = false;
};

Script CompositeImpl::script() const {
  TORCH_CHECK_NOT_IMPLEMENTED(!inputs_.empty() && !outputs_.empty(), "a network without an input or an output");
  if (!planned_) make_plan();
  return ForwardWriter(*this).write();
}

}  // namespace spikeforge::nn
