// A network in TorchScript: the plan that it runs by, written out.
#include <spikeforge/nn/composite.h>

#include <functional>
#include <set>

namespace spikeforge::nn {
namespace {

// Layers without time are called once a step, on memory aligned as that of a new tensor (part.h).
std::string each_step(const std::string& method, const std::string& part) {
  return "\ndef " + method + "(self, x: Tensor) -> Tensor:\n" +  //
         "  rows: List[Tensor] = []\n" +                         //
         "  for row in x.unbind(0):\n" +                         //
         "    rows.append(" + script::member(part) + ".forward(row.clone()))\n" + "  return torch.stack(rows)\n";
}

// A connection's sequence as it arrives, and what is on its way afterwards.
const char* const later = R"(
def later(self, sequence: Tensor, line: Tensor, delay: int) -> Tuple[Tensor, Tensor]:
  if line.size() == [0]:
    line = sequence.new_zeros([delay] + sequence.size()[1:])
  assert line.size()[1:] == sequence.size()[1:] and line.dtype == sequence.dtype, "what is on its way through a delay has another shape or type than what comes now; call reset() to start anew"
  both = torch.cat([line, sequence])
  return both[:sequence.size(0)], both[sequence.size(0):].clone()
)";

// Within a loop: lines are what is on its way, the oldest first; none at the start.
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
  assert line[0].size() == leaving.size() and line[0].dtype == leaving.dtype, "what is on its way through a delay has another shape or type than what comes now; call reset() to start anew"
  return line[1:] + [leaving]

def sum_of(self, terms: List[Tensor], lines: List[List[Tensor]]) -> Tensor:
  assert len(terms) > 0, "all that comes to a part is still on its way at the first step, so its shape is not known; give one of the connections its shape"
  for line in lines:
    if len(line) > 0:
      for term in terms:
        assert term.size() == line[0].size(), "what is on its way through a delay has another shape than what comes now; call reset() to start anew"
  total = terms[0]
  for i in range(1, len(terms)):
    total = total + terms[i]
  return total
)";

// Names that nothing else in a function or a class has.
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

std::string indented(const std::string& body) {
  std::string all;
  for (std::size_t start = 0, end = 0; start < body.size(); start = end) {
    end = body.find('\n', start) + 1;
    all += "  " + body.substr(start, end - start);
  }
  return all;
}

}  // namespace

// run_at_rest, written out: networks within this one are written with it, not called.
class CompositeImpl::RestWriter {
 public:
  // variable: a new one for a wish. body: where the statements go.
  RestWriter(std::function<std::string(const std::string&)> variable, std::string& body)
      : variable_(std::move(variable)), body_(body) {}

  // The variables of what the parts give before the first step, if these variables, [1, ...] each, come in.
  std::vector<Names> write(const CompositeImpl& network, const std::string& path, const Names& inputs) {
    if (!network.planned_) network.make_plan();
    std::vector<Names> outputs(network.nodes_.size());
    for (const Stage& stage : network.plan_)
      for (const int n : stage.nodes) {
        const Node& node = network.nodes_[n];
        Names into;
        for (std::size_t port = 0; port < node.inputs.size(); ++port) {
          into.push_back(sum(network, node.edges_into[port], inputs, outputs, /*with_shapes=*/true));
          TORCH_CHECK_VALUE(!into.back().empty(), "the shape of what comes to '", node.name, ".", node.inputs[port],
                            "' before the first step is not known; give one of its connections its {.shape = {...}}");
        }
        outputs[n] = part(node, script::member(node.name, path), into);
      }
    return outputs;
  }

 private:
  std::string assign(const std::string& wish, const std::string& value) {
    std::string name = variable_(wish);
    body_ += name + " = " + value + "\n";
    return name;
  }

  std::string sum(const CompositeImpl& network, const std::vector<int>& edges, const Names& inputs,
                  const std::vector<Names>& outputs, bool with_shapes) {
    std::string text;
    for (const int e : edges) {
      const auto& [from, to, connection, state, line] = network.edges_[e];
      std::string term;
      if (connection.delay == 0)
        term = from.node == outside ? inputs[from.index] : outputs[from.node][from.index];
      else if (!with_shapes || connection.shape.empty())
        continue;
      else {
        std::vector<std::int64_t> shape = connection.shape;
        shape.insert(shape.begin(), 1);
        TORCH_CHECK_NOT_IMPLEMENTED(!inputs.empty(), "a network without an input");
        term = inputs[0] + ".new_zeros(" + script::list(shape) + ")";
      }
      text += (text.empty() ? "" : " + ") + term;
    }
    return text;
  }

  Names part(const Node& node, const std::string& path, const Names& into) {
    const std::string wish = "rest_of_" + node.name;
    const Stateful* stateful = node.part.stateful();
    if (!stateful)  // as each_step
      return {assign(wish, "torch.stack([" + path + ".forward(" + arguments(into) + "[0].clone())])")};
    Names results;
    if (const auto* network = dynamic_cast<const CompositeImpl*>(stateful)) {
      const std::vector<Names> outputs = write(*network, path, into);
      for (const auto& edges : network->edges_out_) {
        const std::string value = sum(*network, edges, into, outputs, /*with_shapes=*/false);
        TORCH_CHECK_NOT_IMPLEMENTED(!value.empty(), "what comes out of '", node.name,
                                    "' before the first step has no known shape");
        results.push_back(assign(wish, value));
      }
      return results;
    }
    const bool is_called = stateful->state_names().empty() || !stateful->script().at_rest.empty();
    if (!is_called) {
      for (std::size_t i = 0; i < node.outputs.size(); ++i)
        results.push_back(assign(wish, "torch.zeros_like(" + into.at(0) + ")"));
      return results;
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) results.push_back(variable_(wish));
    body_ += c10::Join(", ", results) + " = " + path + (stateful->state_names().empty() ? ".forward(" : ".at_rest(") +
             arguments(into) + ")\n";
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

Script CompositeImpl::script() const {
  TORCH_CHECK_NOT_IMPLEMENTED(!inputs_.empty() && !outputs_.empty(), "a network without an input or an output");
  if (!planned_) make_plan();
  Script result{.name = kind(), .inputs = {}, .outputs = outputs_.size()};
  std::set<std::string> methods;
  Variables variable, member;  // of forward, and of the class
  for (const Node& node : nodes_) member.take(script::attribute(node.name));
  std::string& body = result.forward;

  for (const std::string& name : inputs_) result.inputs.push_back(variable(inputs_.size() == 1 ? "x" : name));
  std::map<std::string, std::string> states;
  for (const int e : delayed_) {
    result.states.push_back(member(edges_[e].state));
    states[edges_[e].state] = script::member(result.states.back());
  }
  const auto state_of = [&](const Edge& edge) { return states.at(edge.state); };

  // The variables of all parts' outputs, and how each part is called.
  std::vector<Names> outputs(nodes_.size());
  Names calls;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const Node& node = nodes_[n];
    for (const std::string& output : node.outputs)
      outputs[n].push_back(variable(node.outputs.size() == 1 ? node.name : node.name + "_" + output));
    if (node.part.stateful()) {
      calls.push_back(script::member(node.name) + ".forward");
      continue;
    }
    const std::string name = member("each_step_" + node.name);
    result.methods += each_step(name, node.name);
    calls.push_back("self." + name);
  }
  const auto source = [&](const Edge& e) {
    return e.from.node == outside ? result.inputs[e.from.index] : outputs[e.from.node][e.from.index];
  };

  // Of all steps: the sum of what the connections bring, in the order of connecting.
  const auto arriving = [&](const Edge& edge) {
    if (edge.connection.delay == 0) return source(edge);
    methods.insert(later);
    std::string name = variable("later_" + source(edge));
    body += name + ", " + state_of(edge) + " = self.later(" + source(edge) + ", " + state_of(edge) + ", " +
            std::to_string(edge.connection.delay) + ")\n";
    return name;
  };
  const auto sum = [&](const std::vector<int>& edges) {
    std::string text;
    for (const int e : edges) text += (text.empty() ? "" : " + ") + arriving(edges_[e]);
    return text;
  };

  const auto write_loop = [&](const Stage& stage) {
    methods.insert(sum_of);
    std::map<int, std::string> into, lines;  // of edges
    for (const int e : stage.edges_into) into[e] = arriving(edges_[e]);
    for (const int e : stage.edges_within) {
      const Edge& edge = edges_[e];
      if (edge.connection.delay == 0) continue;
      lines[e] = variable("line_" + source(edge));
      body += lines[e] + " = self.waiting(" + state_of(edge) + ")\n";
    }
    std::map<std::string, std::string> rows;  // of the parts' outputs
    for (const int n : stage.nodes)
      for (const std::string& output : outputs[n]) {
        rows[output] = variable("rows_" + output);
        body += rows[output] + ": List[Tensor] = []\n";
      }
    const std::string& x = result.inputs[0];
    body += "assert " + x + ".size(0) > 0, \"a loop of connections needs at least one step\"\n";
    body += "for t in range(" + x + ".size(0)):\n";
    for (const int n : stage.nodes) {
      const Node& node = nodes_[n];
      Names arguments;
      for (std::size_t port = 0; port < node.inputs.size(); ++port) {
        const std::string terms = variable("into_" + node.name);
        Names delayed;
        body += "  " + terms + ": List[Tensor] = []\n";
        for (const int e : node.edges_into[port]) {
          const Edge& edge = edges_[e];
          if (into.contains(e))
            body += "  " + terms + ".append(" + into[e] + ".narrow(0, t, 1))\n";
          else if (edge.connection.delay == 0)
            body += "  " + terms + ".append(" + source(edge) + ")\n";
          else {
            delayed.push_back(lines[e]);
            body += "  if len(" + lines[e] + ") > 0:\n    " + terms + ".append(" + lines[e] + "[0])\n";
            if (edge.connection.shape.empty()) continue;
            std::vector<std::int64_t> shape = edge.connection.shape;
            shape.insert(shape.begin(), 1);
            body += "  else:\n    " + terms + ".append(" + x + ".new_zeros(" + script::list(shape) + "))\n";
          }
        }
        std::string lists = "[" + c10::Join(", ", delayed) + "]";
        if (delayed.empty()) {
          lists = variable("no_lines");
          body += "  " + lists + ": List[List[Tensor]] = []\n";
        }
        arguments.push_back("self.sum_of(" + terms + ", " + lists + ")");
      }
      body += "  " + c10::Join(", ", outputs[n]) + " = " + calls[n] + "(" + c10::Join(", ", arguments) + ")\n";
      for (const std::string& output : outputs[n]) body += "  " + rows[output] + ".append(" + output + ")\n";
    }
    for (const auto& [e, line] : lines)
      body += "  " + line + " = self.moved(" + line + ", " + source(edges_[e]) + ", " +
              std::to_string(edges_[e].connection.delay) + ")\n";
    for (const auto& [e, line] : lines) body += state_of(edges_[e]) + " = torch.cat(" + line + ")\n";
    // From here on a part's variable is its sequence.
    for (const int n : stage.nodes)
      for (std::string& output : outputs[n]) {
        const std::string sequence = variable("all_" + output);
        body += sequence + " = torch.cat(" + rows[output] + ")\n";
        output = sequence;
      }
  };

  const auto write_start = [&] {
    std::vector<int> starting;
    Names are_empty;
    for (const int e : delayed_)
      if (edges_[e].connection.from_rest) {
        starting.push_back(e);
        are_empty.push_back(state_of(edges_[e]) + ".size() == [0]");
      }
    if (starting.empty()) return;
    std::string start;
    Names zeros;
    for (const std::string& input : result.inputs) {
      zeros.push_back(variable("silent_" + input));
      start += zeros.back() + " = torch.zeros_like(" + input + ".narrow(0, 0, 1))\n";
    }
    const std::vector<Names> rest = RestWriter(std::ref(variable), start).write(*this, "self", zeros);
    for (std::size_t i = 0; i < starting.size(); ++i) {
      const auto& [from, to, connection, state, line] = edges_[starting[i]];
      start += "if " + are_empty[i] + ":\n  " + states.at(state) + " = torch.cat([" +
               (from.node == outside ? zeros[from.index] : rest[from.node][from.index]) + "] * " +
               std::to_string(connection.delay) + ")\n";
    }
    body += "if " + result.inputs[0] + ".size(0) > 0 and (" + c10::Join(" or ", are_empty) + "):\n" + indented(start);
  };

  write_start();
  for (const Stage& stage : plan_) {
    if (stage.is_loop) {
      write_loop(stage);
      continue;
    }
    const int n = stage.nodes[0];
    Names arguments;
    for (const auto& edges : nodes_[n].edges_into) arguments.push_back(sum(edges));
    body += c10::Join(", ", outputs[n]) + " = " + calls[n] + "(" + c10::Join(", ", arguments) + ")\n";
  }
  Names results;
  for (const auto& edges : edges_out_) results.push_back(sum(edges));
  body += "return " + c10::Join(", ", results) + "\n";
  for (const std::string& text : methods) result.methods += text;
  return result;
}

}  // namespace spikeforge::nn
