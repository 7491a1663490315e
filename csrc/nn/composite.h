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
// delay of 1 or more. detach_state() cuts the history of values in flight: if the weights of a layer are trained on
// pieces of a sequence, put the delay before the layer, not after it.
//
// Execution: each part outside a loop runs over all steps at once (delays outside loops shift sequences); the parts of
// a loop are stepped together. The results equal those of stepping the whole network, bit for bit (part.h,
// time_distributed.h), with one exception: a loop of a neuron and a torch::nn::Linear, from the neuron's first output
// back to the neuron, is one operator over all steps (ops/recurrent.h), whose sums agree within rounding. Printing the
// network shows these loops, and step_loops(true) steps them too. A network is a module, so networks nest.
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
  // The shape of one step. It is needed only in a loop that no input of the network reaches.
  std::vector<std::int64_t> shape = {};
  // Allows a duplicate of an existing connection; its values are added once more.
  bool repeated = false;
  // The connection initially holds the output of its source in the resting state, without input and spikes (for example
  // the bias of a layer), instead of zeros.
  bool from_rest = false;
};

class SPIKEFORGE_API CompositeOptions {
 public:
  // Includes the values in flight in save().
  CompositeOptions& persistent_state(bool on) { return persistent_ = on, *this; }
  // Steps every loop, including loops that could run as one operator: slower, with the exact bits of stepping.
  CompositeOptions& step_loops(bool on) { return step_loops_ = on, *this; }

  bool persistent_state() const { return persistent_; }
  bool step_loops() const { return step_loops_; }

 private:
  bool persistent_ = false, step_loops_ = false;
};

class SPIKEFORGE_API CompositeImpl : public Stateful {
 public:
  explicit CompositeImpl(CompositeOptions options = {}) : options_(options) {}

  // Adds a module with states, or a torch layer, which is called once per step unless it is TimeDistributed.
  void add(const std::string& name, Part part);
  // Throws c10::ValueError for a port that does not exist, for a second connection of the same ports (unless
  // `connection` allows it), and for a loop without a delay; the message lists the loop.
  void connect(const std::string& from, const std::string& to, const Connection& connection = {});
  // Adds a name for a state, parameter or buffer of a part ("lif.v", "layer.dense.weight"). Reads and writes under this
  // name access the same tensor. If `shape` is given, the tensor must have it.
  void alias(const std::string& name, const std::string& variable, c10::OptionalIntArrayRef shape = {});
  // The same for a tensor, which is a parameter or buffer of a part at any depth.
  void alias(const std::string& name, const at::Tensor& variable);

  // Read and write a state, parameter, buffer or alias by its name relative to this network. `get` returns the tensor
  // itself, or an undefined tensor for a state that does not exist. `set` writes into a parameter or buffer, and
  // replaces a state.
  at::Tensor get(const std::string& name) const;
  void set(const std::string& name, const at::Tensor& value);

  // Records a state or an output of the network or of a part at any depth, during the lifetime of the recording.
  std::shared_ptr<Recording> record(const std::string& name);

  void expect(std::int64_t steps) override;
  bool takes_samples() const override { return true; }
  Tensors at_rest(at::TensorList inputs) override;
  // The parts by name and the connections between them, in the order in which they were added.
  struct Wire {
    std::string from, to;
    Connection connection;
  };
  std::vector<std::pair<std::string, Part>> parts() const;
  std::vector<Wire> wires() const;

  // Returns the variable of an alias, or null.
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
  // Copies a network into this empty one, with clones of its parts.
  void copy_network(const CompositeImpl& from);

  void set_own_state(std::size_t i, at::Tensor value) override;

 private:
  static constexpr int outside = -1;
  struct Port {  // an output or input of a part, or an input or output of the network, by its index
    int node = outside;
    int index = 0;
    bool operator==(const Port&) const = default;
  };
  struct Edge {
    Port from, to;
    Connection connection;
    std::string state;            // the name of the state, if there is a delay
    std::deque<at::Tensor> line;  // values in flight, [1, *shape] each, the oldest first; empty: zeros
  };
  struct Node {
    std::string name;
    Part part;
    std::vector<std::vector<int>> edges_into;  // per input port
    std::vector<int> edges_from;
    std::vector<std::weak_ptr<Recording>> recordings;  // of a torch module
    Names inputs, outputs;
    CompositeImpl* network = nullptr;      // the part, if it is a network
    std::vector<Stateful*> stateful = {};  // the part and its stateful descendants
  };
  struct Run;
  struct Before;

  // Returns the known value of an edge, or the value that was sent along it: a tensor, or its name in a script. Empty
  // if there is none.
  template <class Value> using Known = std::function<Value(int edge)>;
  // Returns one step with the shape of the output that an edge starts at. It is computed from known values by running
  // the nodes before it with `call`. Empty if no known value leads there.
  template <class Value>
  Value step_of(int edge, const std::vector<int>& nodes, const Known<Value>& known,
                const std::function<std::vector<Value>(const Node&, const std::vector<Value>&)>& call) const;
  // Returns zeros of the shape of a step, for an input whose values are all still in flight.
  at::Tensor zeros_into(const Run& run, const Stage& stage, const Node& node, std::size_t port,
                        const Known<at::Tensor>& known) const;

  // Does the work of advance(), but does not restore the states if a part throws.
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

  static at::Tensor waiting(const Edge& edge);  // undefined if there are none
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
  std::unordered_map<std::string, int> number_of_;  // the index of each node, by its name
  std::vector<Edge> edges_;
  std::vector<int> delayed_;                // the edges with a state
  std::unordered_set<std::string> states_;  // the names of the states
  Names inputs_, outputs_;
  struct Alias {
    std::string variable;
    std::optional<std::vector<std::int64_t>> shape;
  };
  std::map<std::string, Alias> aliases_;
  mutable std::vector<Stage> plan_;
  mutable std::vector<std::vector<int>> edges_out_;  // the edges into each output of the network
  mutable bool planned_ = false;
};
TORCH_MODULE(Composite);

}  // namespace spikeforge::nn
