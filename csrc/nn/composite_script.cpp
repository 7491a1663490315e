// A network in TorchScript: the plan that it runs by, written out.
#include <spikeforge/nn/composite.h>

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

// Names that nothing else in a function has.
class Variables {
 public:
  std::string operator()(const std::string& wish) {
    const std::string base = script::identifier(wish);
    std::string name = base;
    for (int i = 2; !given_.insert(name).second; ++i) name = base + "_" + std::to_string(i);
    return name;
  }

 private:
  std::set<std::string> given_;
};

}  // namespace

Script CompositeImpl::script() const {
  TORCH_CHECK_NOT_IMPLEMENTED(!inputs_.empty() && !outputs_.empty(), "a network without an input or an output");
  if (!planned_) make_plan();
  Script result{.name = kind(), .inputs = {}, .outputs = outputs_.size()};
  std::set<std::string> methods;
  Variables variable, method;
  std::string& body = result.forward;

  for (const std::string& name : inputs_) result.inputs.push_back(variable(inputs_.size() == 1 ? "x" : name));
  for (const int e : delayed_) result.states.push_back(script::identifier(edges_[e].state));
  const auto state_of = [&](const Edge& edge) { return script::member(script::identifier(edge.state)); };

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
    const std::string name = method("each_step_" + node.name);
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
