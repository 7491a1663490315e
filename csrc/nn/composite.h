// A network of modules that are connected by name.
//
//   Composite net;
//   net->add("dense", torch::nn::Linear(3, 3));
//   net->add("lif", LIF());
//   net->connect("in", "dense.in");
//   net->connect("dense.out", "lif.in", {.delay = 1});
//   net->connect("lif.out", "out");
//   net->alias("v", "lif.v");
//
// "dense.in" is a port of a part; a name without a dot is a port of the network itself. Several connections into one
// port are summed in the order in which they were added. A connection delays by 0 or more steps; values in flight are a
// state of the network, [delay, *shape], the oldest first, and zero at the start. Loops are legal if they contain a
// delay of 1 or more. detach_state() cuts the history of values in flight: put a delay before a layer, not after it, if
// the layer's weights learn from pieces of a sequence.
//
// Execution: parts outside loops run over all steps at once, one after the other (their delays too: they shift
// sequences); the parts of a loop are stepped together. The results are those of stepping the whole, bit for bit
// (part.h, time_distributed.h). But a neuron whose first output is connected to itself through a torch::nn::Linear
// alone is one operator over all steps (ops/recurrent.h), whose sums agree with those of steps within rounding;
// printing the network shows which loops are, and step_loops(true) steps them too. A network is a module like any
// other, so networks nest.
#pragma once

#include "csrc/nn/composite_plan.h"
#include "csrc/nn/part.h"

#include <deque>
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace spikeforge::nn {

struct Connection {
  std::int64_t delay = 0;
  // The shape of one step; needed only in a loop that no input of the network leads to.
  std::vector<std::int64_t> shape = {};
  // The same connection may be there already: it counts again.
  bool repeated = false;
  // The connection starts with what its source gives before the first step, when no input has come and no neuron has
  // fired (a layer's bias, for example), instead of zeros.
  bool from_rest = false;
};

class SPIKEFORGE_API CompositeOptions {
 public:
  // save() writes the values in flight through delays.
  CompositeOptions& persistent_state(bool on) { return persistent_ = on, *this; }
  // Steps every loop, also one that could be one operator: the bits of steps, at their pace.
  CompositeOptions& step_loops(bool on) { return step_loops_ = on, *this; }

  bool persistent_state() const { return persistent_; }
  bool step_loops() const { return step_loops_; }

 private:
  bool persistent_ = false, step_loops_ = false;
};

class SPIKEFORGE_API CompositeImpl : public Stateful {
 public:
  explicit CompositeImpl(CompositeOptions options = {}) : options_(options) {}

  // Adds a module with states, or a layer of torch, which is called once per step unless it is TimeDistributed.
  void add(const std::string& name, Part part);
  // Throws c10::ValueError for a port that does not exist, for a second connection of the same ports (unless
  // `connection` allows it), and for a loop without a delay; the message lists the loop.
  void connect(const std::string& from, const std::string& to, const Connection& connection = {});
  // Adds a name for a state, parameter or buffer of a part ("lif.v", "layer.dense.weight"). Reads and writes under this
  // name access the same tensor. If `shape` is given, the tensor must have it.
  void alias(const std::string& name, const std::string& variable, c10::OptionalIntArrayRef shape = {});
  // The same, of a tensor: a parameter or buffer of a part below.
  void alias(const std::string& name, const at::Tensor& variable);

  // A state, parameter, buffer or alias, by its name from here. `get` gives the tensor itself; undefined for a state
  // that does not exist. `set` writes into a parameter or buffer, and replaces a state.
  at::Tensor get(const std::string& name) const;
  void set(const std::string& name, const at::Tensor& value);

  // Records a state or an output of a part below, or of the network, for as long as the recording lives.
  std::shared_ptr<Recording> record(const std::string& name);

  void expect(std::int64_t steps) override;
  bool takes_samples() const override { return true; }
  Tensors at_rest(at::TensorList inputs) override;
  // Its parts by name, in the order of adding, and what connects them, in the order of connecting.
  struct Wire {
    std::string from, to;
    Connection connection;
  };
  std::vector<std::pair<std::string, Part>> parts() const;
  std::vector<Wire> wires() const;

  // The variable of an alias, or null.
  const std::string* variable_of(const std::string& alias) const;

  Names input_names() const override { return inputs_; }
  Names output_names() const override { return outputs_; }
  Names state_names() const override;
  at::Tensor own_state(std::size_t i) const override;
  void set_path(const std::string& path) override;
  void pretty_print(std::ostream& stream) const override;
  Script script() const override;

 protected:
  const char* kind() const override { return "Composite"; }
  Tensors advance(at::TensorList inputs, std::int64_t steps) override;
  std::shared_ptr<Stateful> fresh() const override;
  // Removes a connection without delay.
  void disconnect(const std::string& from, const std::string& to);
  // Makes this, which is empty, the same network of clones of its parts.
  void copy_network(const CompositeImpl& from);

  void set_own_state(std::size_t i, at::Tensor value) override;

 private:
  static constexpr int outside = -1;
  struct Port {  // output or input number `index` of a part, or input or output of the network
    int node = outside;
    int index = 0;
    bool operator==(const Port&) const = default;
  };
  struct Edge {
    Port from, to;
    Connection connection;
    std::string state;            // its name, where there is a delay
    std::deque<at::Tensor> line;  // values in flight, [1, *shape] each, the oldest first; empty: zeros
  };
  struct Node {
    std::string name;
    Part part;
    std::vector<std::vector<int>> edges_into;  // for each input port
    std::vector<int> edges_from;
    std::vector<std::weak_ptr<Recording>> recordings;  // of a module of torch
    Names inputs, outputs;
    CompositeImpl* network = nullptr;      // the part, if it is one
    std::vector<Stateful*> stateful = {};  // the part and those below it
  };
  struct Run;
  struct Before;

  // The known value of an edge, or the value that was sent along it: a tensor, or its name in a script; empty if there
  // is none.
  template <class Value> using Known = std::function<Value(int edge)>;
  // A step with the shape of an edge source's output, computed from the known inputs of the nodes before it, which
  // `call` runs; empty if none leads there.
  template <class Value>
  Value step_of(int edge, const std::vector<int>& nodes, const Known<Value>& known,
                const std::function<std::vector<Value>(const Node&, const std::vector<Value>&)>& call) const;
  // Zeros of the shape of a step, for an input to which all that comes is still in flight.
  at::Tensor zeros_into(const Run& run, const Stage& stage, const Node& node, std::size_t port,
                        const Known<at::Tensor>& known) const;

  // advance(), without what puts the states back where a part fails.
  Tensors run_parts(at::TensorList inputs, std::int64_t steps);
  void note_states(std::vector<Before>& before);
  static void put_back(Before& before);

  void start_from_rest(at::TensorList inputs);
  void run_at_rest(Run& run);
  class RestWriter;
  class ForwardWriter;

  Port find_port(const std::string& name, bool is_source);
  int find_node(const std::string& name) const;
  std::string name_of(Port port, bool is_source) const;
  void refuse_instant_loop(const Edge& edge, const std::string& from, const std::string& to) const;
  void make_plan() const;
  void check_new_name(const std::string& name, const char* what) const;
  void set_path_of(const Node& node) const;

  static at::Tensor waiting(const Edge& edge);  // undefined: nothing
  static void set_line(Edge& edge, const at::Tensor& waiting);
  void check_line(const Edge& edge, const at::Tensor& next) const;
  at::Tensor shift(Edge& edge, const at::Tensor& sequence) const;
  void check_sum(const Stage& stage, const Edge& edge, const at::Tensor& sum, const at::Tensor& term) const;
  static const at::Tensor& sent(const Run& run, const Edge& edge);
  at::Tensor arriving(const Run& run, Edge& edge) const;
  at::Tensor zeros(const Run& run, const Connection& connection) const;
  Tensors run_node(Node& node, const Tensors& inputs, std::int64_t steps) const;
  void run_loop(Run& run, const Stage& stage);
  struct Loop;
  std::optional<Loop> find_loop(const Stage& stage) const;
  bool run_at_once(Run& run, const Stage& stage);
  void refuse_samples(const Stage& stage) const;

  CompositeOptions options_;
  std::vector<Node> nodes_;
  std::unordered_map<std::string, int> number_of_;  // of each node, by its name
  std::vector<Edge> edges_;
  std::vector<int> delayed_;                // the edges with a state
  std::unordered_set<std::string> states_;  // their names
  Names inputs_, outputs_;
  struct Alias {
    std::string variable;
    std::optional<std::vector<std::int64_t>> shape;
  };
  std::map<std::string, Alias> aliases_;
  mutable std::vector<Stage> plan_;
  mutable std::vector<std::vector<int>> edges_out_;  // into each output of the network
  mutable bool planned_ = false;
};
TORCH_MODULE(Composite);

}  // namespace spikeforge::nn
