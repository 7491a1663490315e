// A neuron's cell as a graph: the pure function of one step, (inputs, states, parameters) -> (outputs, next states).
#pragma once

#include "csrc/base/export.h"
#include "csrc/graph/graph.h"

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge::graph {

// Limits on untrusted text, far above the needs of a neuron.
constexpr std::size_t most_nodes = 4096;
constexpr std::size_t most_arguments = 256;
constexpr std::size_t most_outputs = 256;
constexpr std::size_t most_name_length = 64;

// A state and its initial value for calls that do not pass one.
struct State {
  State(const char* name) : name(name) {}                                                   // NOLINT
  State(std::string name, double initial = 0) : name(std::move(name)), initial(initial) {}  // NOLINT

  std::string name;
  double initial = 0;
};

struct Signature {
  std::string name;
  std::vector<std::string> inputs;  // at least one
  std::vector<State> states;
  std::vector<std::string> params;
};

// Returns a text such as "x; v, a; tau".
std::string text_of(const Signature& signature);

// True if the text is a legal name in neuron text: a letter or _, then letters, digits and _, and not a reserved word.
bool is_name(std::string_view text);
bool is_reserved(std::string_view text);

class SPIKEFORGE_API Cell {
 public:
  // Creates a graph that has only its arguments. Throws GraphError if a name is not legal or not unique.
  explicit Cell(Signature signature);

  // Sets the results. Throws GraphError unless there is an output, and a next state for each state.
  void finish(std::span<const Id> outputs, std::span<const Id> next_states);

  const Signature& signature() const { return signature_; }
  const std::string& name() const { return signature_.name; }

  // Arguments: inputs, states, parameters. Results: outputs, next states.
  const Graph& graph() const { return graph_; }
  Graph& graph() { return graph_; }

  std::size_t input_count() const { return signature_.inputs.size(); }
  std::size_t state_count() const { return signature_.states.size(); }
  std::size_t param_count() const { return signature_.params.size(); }
  std::size_t output_count() const { return graph_.results().size() - state_count(); }  // valid after finish()

  Id input(std::size_t i) const { return static_cast<Id>(i); }
  Id state(std::size_t i) const { return static_cast<Id>(input_count() + i); }
  Id param(std::size_t i) const { return static_cast<Id>(input_count() + state_count() + i); }
  Id output(std::size_t i) const { return graph_.results()[i]; }
  Id next_state(std::size_t i) const { return graph_.results()[output_count() + i]; }

 private:
  Signature signature_;
  Graph graph_{most_nodes};
};

}  // namespace spikeforge::graph
