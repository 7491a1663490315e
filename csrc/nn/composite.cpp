#include "csrc/nn/composite.h"
#include "csrc/nn/internal/scoped_samples.h"
#include "csrc/nn/internal/step_of.h"
#include "csrc/nn/neuron_module.h"
#include "csrc/nn/recording.h"
#include "ops/recurrent.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <typeinfo>

namespace spikeforge::nn {
namespace {

std::size_t find(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) - names.begin();
}

// Returns zeros for `count` steps of the shape of a step of the sequence.
at::Tensor zeros_of(const at::Tensor& sequence, std::int64_t count) {
  std::vector<std::int64_t> sizes = sequence.sizes().vec();
  sizes[0] = count;
  return at::zeros(sizes, sequence.options());
}

std::string listed(const Names& names) { return names.empty() ? "none" : c10::Join(", ", names); }

// Finds a state, parameter or buffer by its dotted name, and resolves the aliases of networks in the path.
struct Variable {
  Stateful* owner = nullptr;  // of a state
  std::size_t state = 0;
  at::Tensor tensor;  // a parameter or a buffer

  explicit operator bool() const { return owner || tensor.defined(); }
  at::Tensor value() const { return owner ? owner->own_state(state) : tensor; }
};

// Returns an empty Variable if there is none.
Variable find_variable(const torch::nn::Module& root, const std::string& name) {
  if (const auto* network = dynamic_cast<const CompositeImpl*>(&root))
    if (const std::string* variable = network->variable_of(name)) return find_variable(root, *variable);

  const std::size_t dot = name.find('.');
  if (dot != std::string::npos) {
    const auto children = root.named_children();
    const auto* child = children.find(name.substr(0, dot));
    return child ? find_variable(**child, name.substr(dot + 1)) : Variable();
  }
  if (const auto* stateful = dynamic_cast<const Stateful*>(&root)) {
    const Names states = stateful->state_names();
    if (const std::size_t state = find(states, name); state < states.size())
      return {const_cast<Stateful*>(stateful), state, {}};  // NOLINT: callers have write access
  }
  const auto parameters = root.named_parameters(/*recurse=*/false), buffers = root.named_buffers(/*recurse=*/false);
  if (const at::Tensor* parameter = parameters.find(name)) return {nullptr, 0, *parameter};
  if (const at::Tensor* buffer = buffers.find(name)) return {nullptr, 0, *buffer};
  return {};
}

}  // namespace

// A neuron whose first output is connected to itself through a Linear, without other connections in the loop.
struct CompositeImpl::Loop {
  int node;  // the index of the neuron
  NeuronModule* neuron;
  const torch::nn::LinearImpl* linear;
  int there, back;  // the edges between neuron and Linear
};

// --- Parts, ports and names

void CompositeImpl::check_new_name(const std::string& name, const char* what) const {
  TORCH_CHECK_VALUE(!name.empty() && name.find('.') == std::string::npos, title(), ": ", what, " '", name,
                    "' must be a name without dots");
  const bool taken = find_node(name) != outside || aliases_.contains(name) || find(inputs_, name) < inputs_.size() ||
                     find(outputs_, name) < outputs_.size() || states_.contains(name);
  TORCH_CHECK_VALUE(!taken, title(), ": ", what, " '", name, "': the name is taken");
}

void CompositeImpl::add(const std::string& name, Part part) {
  check_new_name(name, "part");
  register_module(name, part.module());
  Node node{name, part, {}, {}, {}, part.input_names(), part.output_names()};
  node.network = dynamic_cast<CompositeImpl*>(part.stateful());
  part.module()->apply([&](torch::nn::Module& module) {
    if (auto* const stateful = dynamic_cast<Stateful*>(&module)) node.stateful.push_back(stateful);
  });
  node.edges_into.resize(node.inputs.size());
  number_of_.emplace(name, static_cast<int>(nodes_.size()));
  nodes_.push_back(std::move(node));
  planned_ = false;
  set_path_of(nodes_.back());
}

int CompositeImpl::find_node(const std::string& name) const {
  const auto found = number_of_.find(name);
  return found == number_of_.end() ? outside : found->second;
}

CompositeImpl::Port CompositeImpl::find_port(const std::string& name, bool is_source) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) {
    Names& own = is_source ? inputs_ : outputs_;
    const std::size_t index = find(own, name);
    if (index == own.size()) {
      check_new_name(name, "port");
      own.push_back(name);
    }
    return {outside, static_cast<int>(index)};
  }
  const std::string part = name.substr(0, dot), port = name.substr(dot + 1);
  const int node = find_node(part);
  TORCH_CHECK_VALUE(node != outside, title(), ": there is no part '", part, "' for the port '", name, "'");
  const Names& ports = is_source ? nodes_[node].outputs : nodes_[node].inputs;
  const std::size_t index = find(ports, port);
  TORCH_CHECK_VALUE(index < ports.size(), title(), ": '", part, "' has no ", is_source ? "output" : "input", " '", port,
                    "'; it has ", listed(ports));
  return {node, static_cast<int>(index)};
}

std::string CompositeImpl::name_of(Port port, bool is_source) const {
  if (port.node == outside) return (is_source ? inputs_ : outputs_)[port.index];
  const Node& node = nodes_[port.node];
  return node.name + "." + (is_source ? node.outputs : node.inputs)[port.index];
}

void CompositeImpl::connect(const std::string& from, const std::string& to, const Connection& connection) {
  TORCH_CHECK_VALUE(connection.delay >= 0, title(), ": the delay from '", from, "' to '", to,
                    "' must be 0 or more steps, but is ", connection.delay);
  Edge edge{find_port(from, true), find_port(to, false), connection, {}, {}};
  const auto is_same = [&](const Edge& other) {
    return other.from == edge.from && other.to == edge.to && other.connection.delay == connection.delay;
  };
  const auto has_none = [&](const std::vector<int>& edges) {
    return std::ranges::none_of(edges, [&](int other) { return is_same(edges_[other]); });
  };
  const bool is_new = edge.to.node != outside     ? has_none(nodes_[edge.to.node].edges_into[edge.to.index])
                      : edge.from.node != outside ? has_none(nodes_[edge.from.node].edges_from)
                                                  : std::ranges::none_of(edges_, is_same);
  TORCH_CHECK_VALUE(connection.repeated || is_new, title(), ": '", from, "' is connected to '", to, "' already");
  if (connection.delay == 0)
    refuse_instant_loop(edge, from, to);
  else {
    edge.state = from + "_to_" + to;
    std::replace(edge.state.begin(), edge.state.end(), '.', '_');
    if (states_.contains(edge.state)) edge.state += "_" + std::to_string(connection.delay);
    const std::string stem = edge.state + "_";
    for (int n = 2; connection.repeated && states_.contains(edge.state); ++n) edge.state = stem + std::to_string(n);
    check_new_name(edge.state, "state");
    states_.insert(edge.state);
    if (options_.persistent_state()) make_persistent(edge.state);
    delayed_.push_back(static_cast<int>(edges_.size()));
  }
  const int number = static_cast<int>(edges_.size());
  if (edge.to.node != outside) nodes_[edge.to.node].edges_into[edge.to.index].push_back(number);
  if (edge.from.node != outside) nodes_[edge.from.node].edges_from.push_back(number);
  edges_.push_back(std::move(edge));
  planned_ = false;
}

void CompositeImpl::disconnect(const std::string& from, const std::string& to) {
  const Port source = find_port(from, true), target = find_port(to, false);
  const auto is_it = [&](const Edge& e) { return e.from == source && e.to == target && e.connection.delay == 0; };
  planned_ = false;
  if (source.node != outside && target.node == outside) {  // fast path for the edge that was added last
    std::vector<int>& leaving = nodes_[source.node].edges_from;
    if (std::ranges::count_if(leaving, [&](int e) { return is_it(edges_[e]); }) == 1 && is_it(edges_.back())) {
      leaving.pop_back();
      edges_.pop_back();
      return;
    }
  }
  std::erase_if(edges_, is_it);
  delayed_.clear();
  for (Node& node : nodes_) {
    node.edges_into.assign(node.inputs.size(), {});
    node.edges_from.clear();
  }
  for (int e = 0; e < static_cast<int>(edges_.size()); ++e) {
    const Edge& edge = edges_[e];
    if (edge.connection.delay > 0) delayed_.push_back(e);
    if (edge.to.node != outside) nodes_[edge.to.node].edges_into[edge.to.index].push_back(e);
    if (edge.from.node != outside) nodes_[edge.from.node].edges_from.push_back(e);
  }
}

void CompositeImpl::refuse_instant_loop(const Edge& edge, const std::string& from, const std::string& to) const {
  if (edge.from.node == outside || edge.to.node == outside) return;
  const Node& source = nodes_[edge.from.node];
  const bool is_first = std::ranges::all_of(source.edges_into, [](const auto& edges) { return edges.empty(); });
  if (edge.from.node != edge.to.node && (is_first || nodes_[edge.to.node].edges_from.empty())) return;
  // Searches depth first from the target of the connection, along connections without a delay.
  std::unordered_map<int, int> came_from = {{edge.to.node, outside}};
  std::vector<int> stack = {edge.to.node};
  while (!stack.empty() && !came_from.contains(edge.from.node)) {
    const int node = stack.back();
    stack.pop_back();
    for (const int number : nodes_[node].edges_from) {
      const Edge& e = edges_[number];
      if (e.to.node == outside || e.connection.delay > 0) continue;
      if (came_from.emplace(e.to.node, node).second) stack.push_back(e.to.node);
    }
  }
  if (!came_from.contains(edge.from.node)) return;
  std::string loop = nodes_[edge.to.node].name;
  for (int node = edge.from.node; node != edge.to.node; node = came_from.at(node))
    loop.insert(0, nodes_[node].name + " -> ");
  loop.insert(0, nodes_[edge.to.node].name + " -> ");
  if (edge.from.node == edge.to.node) loop = nodes_[edge.to.node].name + " -> " + nodes_[edge.to.node].name;
  TORCH_CHECK_VALUE(false, title(), ": connecting '", from, "' to '", to, "' closes the loop ", loop,
                    " without a delay; give one of its connections {.delay = 1} or more");
}

void CompositeImpl::set_path(const std::string& path) {
  Stateful::set_path(path);
  for (const Node& node : nodes_) set_path_of(node);
}

void CompositeImpl::set_path_of(const Node& node) const {
  if (Stateful* part = node.part.stateful()) part->set_path(path().empty() ? node.name : path() + "." + node.name);
}

void CompositeImpl::pretty_print(std::ostream& stream) const {
  stream << kind();
  const auto is_fed = [](const Node& node) {
    return std::none_of(node.edges_into.begin(), node.edges_into.end(),
                        [](const auto& edges) { return edges.empty(); });
  };
  if (!std::all_of(nodes_.begin(), nodes_.end(), is_fed)) return;  // the parts are not connected yet
  if (!planned_) make_plan();
  for (const Stage& stage : plan_) {
    if (!stage.is_loop) continue;
    Names names;
    for (const int node : stage.nodes) names.push_back(nodes_[node].name);
    stream << (find_loop(stage) ? " [one operator over time: " : " [stepped: ") << listed(names) << ']';
  }
}

// --- Variables

void CompositeImpl::alias(const std::string& name, const std::string& variable, c10::OptionalIntArrayRef shape) {
  check_new_name(name, "alias");
  const Variable found = find_variable(*this, variable);
  TORCH_CHECK_VALUE(found && variable.find('.') != std::string::npos, title(), ": the alias '", name,
                    "' must name a state, parameter or buffer of a part below, which '", variable, "' is not");
  const at::Tensor value = found.value();
  TORCH_CHECK_VALUE(!shape || !value.defined() || value.sizes() == *shape, title(), ": the alias '", name,
                    "' is to have shape ", shape.value_or(c10::IntArrayRef()), ", but '", variable, "' has shape ",
                    value.defined() ? value.sizes() : c10::IntArrayRef());
  aliases_[name] = {variable, shape ? std::optional(shape->vec()) : std::nullopt};
}

void CompositeImpl::alias(const std::string& name, const at::Tensor& variable) {
  for (const NamedTensors& all : {named_parameters(), named_buffers(), state()})
    for (const auto& item : all)
      if (item.value().is_same(variable)) return alias(name, item.key());
  TORCH_CHECK_VALUE(false, title(), ": the alias '", name,
                    "' must be a state, parameter or buffer of a part below, which this tensor is not");
}

at::Tensor CompositeImpl::get(const std::string& name) const {
  const Variable found = find_variable(*this, name);
  TORCH_CHECK_VALUE(found, title(), ": there is no state, parameter, buffer or alias '", name, "'");
  return found.value();
}

void CompositeImpl::set(const std::string& name, const at::Tensor& value) {
  const Variable found = find_variable(*this, name);
  TORCH_CHECK_VALUE(found, title(), ": there is no state, parameter, buffer or alias '", name, "'");
  const auto check_shape = [&](c10::IntArrayRef shape) {
    TORCH_CHECK_VALUE(value.sizes() == shape, title(), ": '", name, "' has shape ", shape, ", but the new value has ",
                      value.sizes());
  };
  if (found.owner) {
    const auto alias = aliases_.find(name);
    if (alias != aliases_.end() && alias->second.shape) check_shape(*alias->second.shape);
    if (const at::Tensor now = found.owner->own_state(found.state); now.defined()) check_shape(now.sizes());
    found.owner->set_state(found.owner->state_names()[found.state], value);
    return;
  }
  check_shape(found.tensor.sizes());
  const at::NoGradGuard no_grad;
  at::Tensor(found.tensor).copy_(value);
}

const std::string* CompositeImpl::variable_of(const std::string& alias) const {
  const auto found = aliases_.find(alias);
  return found == aliases_.end() ? nullptr : &found->second.variable;
}

std::shared_ptr<Recording> CompositeImpl::record(const std::string& name) {
  if (const std::string* variable = variable_of(name)) return record(*variable);
  const auto record_of = [&](Stateful& module, const std::string& what) -> std::shared_ptr<Recording> {
    for (const bool is_state : {true, false}) {
      const Names names = is_state ? module.state_names() : module.output_names();
      const std::size_t index = find(names, what);
      if (index == names.size()) continue;
      auto recording = std::make_shared<Recording>(is_state, index);
      module.attach(recording);
      return recording;
    }
    return nullptr;
  };

  const std::size_t dot = name.find('.');
  const int node = dot == std::string::npos ? outside : find_node(name.substr(0, dot));
  const std::string rest = dot == std::string::npos ? name : name.substr(dot + 1);
  std::shared_ptr<Recording> recording;
  if (dot == std::string::npos)
    recording = record_of(*this, name);
  else if (node != outside) {
    Stateful* part = nodes_[node].part.stateful();
    if (auto* network = dynamic_cast<CompositeImpl*>(part)) return network->record(rest);
    if (part)
      recording = record_of(*part, rest);
    else if (const std::size_t index = find(nodes_[node].outputs, rest); index < nodes_[node].outputs.size()) {
      recording = std::make_shared<Recording>(/*is_state=*/false, index);
      nodes_[node].recordings.push_back(recording);
    }
  }
  TORCH_CHECK_VALUE(recording, title(), ": cannot record '", name, "': there is no such state or output");
  return recording;
}

void CompositeImpl::expect(std::int64_t steps) {
  Stateful::expect(steps);
  for (const Node& node : nodes_) {
    if (Stateful* part = node.part.stateful()) part->expect(steps);
    for (const auto& attached : node.recordings)
      if (const auto recording = attached.lock()) recording->expect(steps);
  }
}

std::vector<std::pair<std::string, Part>> CompositeImpl::parts() const {
  std::vector<std::pair<std::string, Part>> parts;
  for (const Node& node : nodes_) parts.emplace_back(node.name, node.part);
  return parts;
}

std::vector<CompositeImpl::Wire> CompositeImpl::wires() const {
  std::vector<Wire> wires;
  for (const Edge& edge : edges_) wires.push_back({name_of(edge.from, true), name_of(edge.to, false), edge.connection});
  return wires;
}

// --- Order

void CompositeImpl::make_plan() const {
  for (const Node& node : nodes_)
    for (std::size_t port = 0; port < node.inputs.size(); ++port)
      TORCH_CHECK_VALUE(!node.edges_into[port].empty(), title(), ": nothing is connected to '", node.name, ".",
                        node.inputs[port], "'");

  std::vector<PlannedEdge> edges;
  edges.reserve(edges_.size());
  for (const Edge& e : edges_) edges.push_back({e.from.node, e.to.node, e.connection.delay > 0});
  plan_ = plan_stages(static_cast<int>(nodes_.size()), edges);
  edges_out_.assign(outputs_.size(), {});
  for (std::size_t e = 0; e < edges_.size(); ++e)
    if (edges_[e].to.node == outside) edges_out_[edges_[e].to.index].push_back(static_cast<int>(e));
  planned_ = true;
}

// --- Delays

Names CompositeImpl::state_names() const {
  Names names;
  for (const int e : delayed_) names.push_back(edges_[e].state);
  return names;
}

at::Tensor CompositeImpl::own_state(std::size_t i) const { return waiting(edges_[delayed_[i]]); }

at::Tensor CompositeImpl::waiting(const Edge& edge) {
  if (edge.line.empty()) return {};
  return edge.line.size() == 1 ? edge.line[0] : at::cat(Tensors(edge.line.begin(), edge.line.end()));
}

void CompositeImpl::set_line(Edge& edge, const at::Tensor& waiting) {
  edge.line.clear();
  for (at::Tensor& row : waiting.split(1)) edge.line.push_back(std::move(row));
}

void CompositeImpl::set_own_state(std::size_t i, at::Tensor value) {
  Edge& edge = edges_[delayed_[i]];
  edge.line.clear();
  if (!value.defined()) return;
  TORCH_CHECK_VALUE(value.dim() >= 1 && value.size(0) == edge.connection.delay, title(), ": the state ", edge.state,
                    " must be [", edge.connection.delay, ", *shape], but has shape ", value.sizes());
  set_line(edge, value);
}

// A batch of 1 would broadcast. A step [1, *shape] of up to two dimensions has no batch.
void CompositeImpl::check_sum(const Stage& stage, const Edge& edge, const at::Tensor& sum,
                              const at::Tensor& term) const {
  if (!sum.defined()) return;
  const auto batch = [](const at::Tensor& t) { return t.sizes().slice(0, std::min<std::size_t>(2, t.dim())); };
  const bool is_alike = std::max(sum.dim(), term.dim()) <= 2 || batch(sum) == batch(term);
  if (is_alike && at::are_expandable(sum.sizes(), term.sizes())) return;
  for (const int e : stage.edges_within)
    if (edges_[e].to == edge.to) check_line(edges_[e], sum);
  TORCH_CHECK_VALUE(false, title(), ": '", name_of(edge.from, true), "' returns a step of shape ",
                    term.sizes().slice(1), ", but '", name_of(edge.to, false), "' takes ", sum.sizes().slice(1),
                    " from other parts; the shapes must match");
}

void CompositeImpl::check_line(const Edge& edge, const at::Tensor& next) const {
  if (edge.line.empty()) return;
  const at::Tensor& now = edge.line[0];
  const bool fits = now.sizes().slice(1) == next.sizes().slice(1) && now.scalar_type() == next.scalar_type() &&
                    now.device() == next.device();
  TORCH_CHECK_VALUE(fits, title(), ": the state ", edge.state, " holds values of shape ", now.sizes().slice(1), " (",
                    now.scalar_type(), ", ", now.device(), "), but the new values have shape ", next.sizes().slice(1),
                    " (", next.scalar_type(), ", ", next.device(), "); call reset() to restart");
}

// Returns the sequence delayed by the connection's delay, and stores the values in flight.
at::Tensor CompositeImpl::shift(Edge& edge, const at::Tensor& sequence) const {
  const std::int64_t delay = edge.connection.delay, steps = sequence.size(0);
  check_line(edge, sequence);
  if (steps == 0) return sequence;
  if (samples().any()) {
    const at::Tensor line = edge.line.empty() ? zeros_of(sequence, delay) : waiting(edge);
    set_line(edge, leaving(samples(), sequence, delay, line));
    return without_restarted(samples(), at::cat({line, sequence}).narrow(0, 0, steps), delay);
  }
  if (edge.line.empty()) edge.line.assign(delay, at::zeros_like(sequence.narrow(0, 0, 1)));
  Tensors arriving;
  const std::int64_t from_line = std::min(delay, steps);
  for (std::int64_t t = 0; t < from_line; ++t) {
    arriving.push_back(std::move(edge.line.front()));
    edge.line.pop_front();
  }
  if (steps > delay) arriving.push_back(sequence.narrow(0, 0, steps - delay));
  // A part of the sequence is copied, because a view would keep the memory of the whole sequence.
  const at::Tensor leaving = steps > delay ? sequence.narrow(0, steps - delay, delay).clone() : sequence;
  if (leaving.size(0) == 1)
    edge.line.push_back(leaving);
  else
    for (at::Tensor& row : leaving.split(1)) edge.line.push_back(std::move(row));
  return arriving.size() == 1 ? arriving[0] : at::cat(arriving);
}

// --- Running

// The states of a module, or the values in flight in a network's connections, before a call.
struct CompositeImpl::Before {
  CompositeImpl* network = nullptr;
  Stateful* module = nullptr;
  std::vector<std::deque<at::Tensor>> lines = {};
  Tensors states = {};
};

struct CompositeImpl::Run {
  at::TensorList inputs;
  std::int64_t steps;
  std::vector<Tensors> outputs;  // of each node
};

namespace {

// Set while an outer network runs, which restores the states after a failure.
thread_local bool is_within_network = false;

// Adds a term to a sum. Terms are added in the order in which their connections were added.
void add_to(at::Tensor& sum, const at::Tensor& term) { sum = sum.defined() ? sum + term : term; }

// Returns tensors of the shape and type of a part's outputs for these inputs [1, ...]. The call has no effect: batch
// norms do not update their statistics, and no random numbers are drawn.
template <class Node> Tensors outputs_like(const Node& node, const Tensors& inputs) {
  const c10::NoGradGuard no_grad;
  std::vector<std::pair<torch::nn::Module*, bool>> modules;  // each before its descendants
  node.part.module()->apply([&](torch::nn::Module& m) { modules.emplace_back(&m, m.is_training()); });
  node.part.module()->eval();
  const auto restore = [&] {
    for (const auto& [m, was_training] : modules) m->train(was_training);
  };
  try {
    Tensors outputs = node.part.stateful() ? node.part.stateful()->at_rest(inputs) : node.part.run(inputs, 1);
    restore();
    return outputs;
  } catch (...) {
    restore();
    throw;
  }
}

// Makes batch norms update copies of their running statistics during the lifetime of this object.
class KeptStatistics {
 public:
  explicit KeptStatistics(torch::nn::Module& module) {
    module.apply([&](torch::nn::Module& m) {
      keep<torch::nn::BatchNorm1dImpl>(m);
      keep<torch::nn::BatchNorm2dImpl>(m);
      keep<torch::nn::BatchNorm3dImpl>(m);
    });
  }
  ~KeptStatistics() {
    for (auto& [statistic, before] : before_) *statistic = std::move(before);
  }
  KeptStatistics(const KeptStatistics&) = delete;
  KeptStatistics& operator=(const KeptStatistics&) = delete;

 private:
  template <class Norm> void keep(torch::nn::Module& module) {
    auto* const norm = dynamic_cast<Norm*>(&module);
    if (!norm || !norm->is_training() || !norm->running_mean.defined()) return;
    for (at::Tensor* statistic : {&norm->running_mean, &norm->running_var, &norm->num_batches_tracked}) {
      before_.emplace_back(statistic, *statistic);
      *statistic = statistic->clone();
    }
  }

  std::vector<std::pair<at::Tensor*, at::Tensor>> before_;
};

}  // namespace

const at::Tensor& CompositeImpl::sent(const Run& run, const Edge& edge) {
  return edge.from.node == outside ? run.inputs[edge.from.index] : run.outputs[edge.from.node][edge.from.index];
}

// The values that a connection carries in all steps.
at::Tensor CompositeImpl::arriving(const Run& run, Edge& edge) const {
  return edge.connection.delay == 0 ? sent(run, edge) : shift(edge, sent(run, edge));
}

Tensors CompositeImpl::run_node(Node& node, const Tensors& inputs, std::int64_t steps) const {
  Tensors outputs = node.part.run(inputs, steps);
  if (!node.recordings.empty()) {
    std::erase_if(node.recordings, [](const auto& r) { return r.expired(); });
    for (const auto& recording : node.recordings) recording.lock()->add(outputs[recording.lock()->index()]);
  }
  return outputs;
}

at::Tensor CompositeImpl::zeros(const Run& run, const Connection& connection) const {
  std::vector<std::int64_t> shape = connection.shape;
  shape.insert(shape.begin(), 1);
  if (!run.inputs.empty()) return at::zeros(shape, run.inputs[0].options());
  for (const at::Tensor& parameter : parameters())
    if (parameter.is_floating_point()) return at::zeros(shape, parameter.options().requires_grad(false));
  return at::zeros(shape);
}

at::Tensor CompositeImpl::zeros_into(const Run& run, const Stage& stage, const Node& node, std::size_t port,
                                     const Known<at::Tensor>& known) const {
  for (const int e : node.edges_into[port]) {
    if (const at::Tensor sent = step_of<at::Tensor>(e, stage.nodes, known, outputs_like<Node>); sent.defined())
      return at::zeros_like(sent);
    if (!edges_[e].connection.shape.empty()) return zeros(run, edges_[e].connection);
  }
  TORCH_CHECK_VALUE(
      false, title(), ": every input of '", node.name, ".", node.inputs[port],
      "' is still in flight at the first step, and no input of the network leads there, so its shape is not "
      "known; set {.shape = {...}} of one of the connections");
}

void CompositeImpl::run_loop(Run& run, const Stage& stage) {
  TORCH_CHECK_VALUE(run.steps > 0, title(), ": a loop of connections needs at least one step");
  std::vector<Tensors> rows_into(edges_.size());
  for (const int e : stage.edges_into) {
    const at::Tensor sequence = arriving(run, edges_[e]);
    rows_into[e] = run.steps == 1 ? Tensors{sequence} : sequence.split(1);
  }
  std::vector<std::vector<Tensors>> rows(nodes_.size());  // of each node's outputs
  for (const int node : stage.nodes) rows[node].resize(nodes_[node].outputs.size());

  for (std::int64_t t = 0; t < run.steps; ++t) {
    // Returns the value of an edge; if nothing is in flight yet, the value that its source has sent in this step.
    const Known<at::Tensor> row = [&](int e) -> at::Tensor {
      const Edge& edge = edges_[e];
      if (!rows_into[e].empty()) return rows_into[e][t];
      if (!edge.line.empty()) return edge.line.front();
      const Tensors& sent = rows[edge.from.node][edge.from.index];
      return static_cast<std::int64_t>(sent.size()) > t ? sent[t] : at::Tensor();
    };
    for (const int number : stage.nodes) {
      Node& node = nodes_[number];
      Tensors inputs(node.inputs.size());
      for (std::size_t port = 0; port < inputs.size(); ++port) {
        const Edge* delayed = nullptr;
        for (const int e : node.edges_into[port]) {
          const Edge& edge = edges_[e];
          if (edge.connection.delay > 0 && rows_into[e].empty()) {
            if (edge.line.empty()) continue;  // adds zeros
            delayed = &edge;
          }
          const at::Tensor term = row(e);
          if (delayed) check_line(*delayed, delayed == &edge && inputs[port].defined() ? inputs[port] : term);
          check_sum(stage, edge, inputs[port], term);
          add_to(inputs[port], term);
        }
        if (!inputs[port].defined()) inputs[port] = zeros_into(run, stage, node, port, row);
      }
      Tensors outputs = run_node(node, inputs, 1);
      for (std::size_t port = 0; port < outputs.size(); ++port) rows[number][port].push_back(std::move(outputs[port]));
    }
    for (const int e : stage.edges_within) {
      Edge& edge = edges_[e];
      if (edge.connection.delay == 0) continue;
      const at::Tensor& leaving = rows[edge.from.node][edge.from.index].back();
      check_line(edge, leaving);
      if (edge.line.empty()) edge.line.assign(edge.connection.delay, at::zeros_like(leaving));
      edge.line.pop_front();
      edge.line.push_back(leaving);
    }
  }
  for (const int node : stage.nodes)
    for (Tensors& column : rows[node])
      run.outputs[node].push_back(run.steps == 1 ? std::move(column[0]) : at::cat(column));
}

std::optional<CompositeImpl::Loop> CompositeImpl::find_loop(const Stage& stage) const {
  if (options_.step_loops() || stage.nodes.size() != 2 || stage.edges_within.size() != 2) return std::nullopt;
  for (const int number : stage.nodes) {
    const int other = stage.nodes[number == stage.nodes[0] ? 1 : 0];
    const Node &linear = nodes_[number], &neuron = nodes_[other];
    const torch::nn::Module& module = *linear.part.module();
    if (typeid(module) != typeid(torch::nn::LinearImpl)) continue;
    Loop loop{.node = other,
              .neuron = dynamic_cast<NeuronModule*>(neuron.part.stateful()),
              .linear = static_cast<const torch::nn::LinearImpl*>(&module),
              .there = stage.edges_within[0],
              .back = stage.edges_within[1]};
    if (edges_[loop.there].to.node != number) std::swap(loop.there, loop.back);
    const Edge &there = edges_[loop.there], &back = edges_[loop.back];
    const bool is_one = loop.neuron != nullptr && loop.neuron->takes_layer() && there.from == Port{other, 0} &&
                        there.to.node == number && back.from.node == number && back.to.node == other &&
                        linear.edges_into[0].size() == 1 && linear.recordings.empty() &&
                        linear.edges_from.size() == 1 &&
                        loop.linear->options.in_features() == loop.linear->options.out_features() &&
                        (there.connection.delay == 0 || back.connection.delay == 0);
    if (is_one) return loop;
  }
  return std::nullopt;
}

// Runs all steps of a loop that is one operator. Returns false, without an effect, if the loop has to be stepped, which
// also reports errors.
bool CompositeImpl::run_at_once(Run& run, const Stage& stage) {
  const bool has_samples = samples().any();
  const std::optional<Loop> loop = run.steps > (has_samples ? 0 : 1) ? find_loop(stage) : std::nullopt;
  if (!loop) return false;
  Edge &there = edges_[loop->there], &back = edges_[loop->back];
  Edge& delayed = back.connection.delay > 0 ? back : there;
  const bool results_wait = back.connection.delay > 0;  // of the Linear; if false, those of the neuron
  const std::int64_t delay = delayed.connection.delay;
  const auto into = static_cast<std::size_t>(back.to.index);
  Node& node = nodes_[loop->node];
  for (std::size_t port = 0; port < node.inputs.size(); ++port)
    if (node.edges_into[port].size() < (port == into ? 2 : 1)) return false;
  for (const int e : stage.edges_into)
    if (edges_[e].connection.delay > 0) return false;  // arriving() would move its values in flight

  Tensors inputs(node.inputs.size());
  for (std::size_t port = 0; port < inputs.size(); ++port)
    for (const int e : node.edges_into[port])
      if (e != loop->back) add_to(inputs[port], arriving(run, edges_[e]));
  const at::Tensor& weight = loop->linear->weight;
  const at::Tensor& bias = loop->linear->bias;
  at::Tensor& x = inputs[into];
  const bool fits = x.dim() >= 2 && x.size(-1) == weight.size(0) && x.scalar_type() == weight.scalar_type() &&
                    x.device() == weight.device();
  if (!fits) return false;
  at::Tensor line;
  if (!delayed.line.empty()) {
    const at::Tensor& first = delayed.line.front();
    if (first.sizes().slice(1) != x.sizes().slice(1) || first.scalar_type() != x.scalar_type()) return false;
    line = waiting(delayed);
  }

  if (!results_wait) {
    if (bias.defined()) x = x + bias;
  } else if (samples().start.defined()) {  // no bias arrives across a restart either
    const std::int64_t early = std::min(delay, run.steps);
    const at::Tensor later = bias.defined() ? bias.expand_as(x) : at::zeros_like(x);
    const at::Tensor first = line.defined() ? line.narrow(0, 0, early) : zeros_of(x, early);
    x = x + without_restarted(samples(), at::cat({first, later.narrow(0, early, run.steps - early)}), delay);
  } else if (line.defined() || bias.defined()) {
    const std::int64_t early = std::min(delay, run.steps);
    at::Tensor first = x.narrow(0, 0, early), later = x.narrow(0, early, run.steps - early);
    if (line.defined()) first = first + line.narrow(0, 0, early);
    if (bias.defined()) later = later + bias;
    x = at::cat({first, later});
  }
  RecurrentOptions options{.into = back.to.index,
                           .delay = delay,
                           .lengths = maybe_given(samples().lengths),
                           .start = maybe_given(samples().start)};
  if (!results_wait && line.defined()) options.spikes = line;
  const NeuronModule::Layer layer = [&](const spikeforge::Neuron& cell, at::TensorList given, at::TensorList states,
                                        at::TensorList params, bool store) -> NeuronModule::Results {
    options.store_states = store;
    auto [outputs, next] = recurrent_run(cell, given, weight.t(), states, params, options);
    return {std::move(outputs), std::move(next)};
  };
  const NeuronModule::Within within(*loop->neuron, layer);
  run.outputs[loop->node] = loop->neuron->run(inputs, run.steps);

  const at::Tensor& spikes = run.outputs[loop->node][0];
  const auto through = [&](const at::Tensor& y) { return at::linear(y, weight, bias); };
  if (has_samples) {
    set_line(delayed,
             results_wait ? leaving(samples(), spikes, delay, line, through) : leaving(samples(), spikes, delay, line));
    return true;
  }
  const std::int64_t leaving = std::min(delay, run.steps);
  at::Tensor recent = spikes.narrow(0, run.steps - leaving, leaving);
  if (delayed.line.empty()) delayed.line.assign(delay, at::zeros_like(recent.narrow(0, 0, 1)));
  recent = results_wait ? through(recent) : recent.clone();
  for (at::Tensor& row : recent.split(1)) {
    delayed.line.pop_front();
    delayed.line.push_back(std::move(row));
  }
  return true;
}

void CompositeImpl::refuse_samples(const Stage& stage) const {
  if (!samples().any()) return;
  Names names;
  for (const int node : stage.nodes) names.push_back(nodes_[node].name);
  TORCH_CHECK_VALUE(false, title(), ": takes neither lengths nor start: ", listed(names), " are stepped");
}

// Computes the outputs before the first step, when nothing has arrived through delays.
void CompositeImpl::run_at_rest(Run& run) {
  for (const Stage& stage : plan_)
    for (const int number : stage.nodes) {
      Node& node = nodes_[number];
      Tensors into(node.inputs.size());
      for (std::size_t port = 0; port < into.size(); ++port) {
        for (const int e : node.edges_into[port])
          if (edges_[e].connection.delay == 0) add_to(into[port], sent(run, edges_[e]));
        if (!into[port].defined())
          into[port] = zeros_into(run, stage, node, port, [&](int e) {
            const Port from = edges_[e].from;
            const bool is_known = from.node == outside || !run.outputs[from.node].empty();
            return is_known ? sent(run, edges_[e]) : at::Tensor();
          });
      }
      const KeptStatistics kept(*node.part.module());
      Stateful* part = node.part.stateful();
      run.outputs[number] = part ? part->at_rest(into) : node.part.run(into, 1);
    }
}

Tensors CompositeImpl::at_rest(at::TensorList inputs) {
  if (!planned_) make_plan();
  Run run{inputs, 1, std::vector<Tensors>(nodes_.size())};
  run_at_rest(run);
  Tensors outputs(edges_out_.size());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (const int e : edges_out_[i])
      if (edges_[e].connection.delay == 0) add_to(outputs[i], arriving(run, edges_[e]));
  for (std::size_t i = 0; i < outputs.size(); ++i)  // all its inputs are in flight
    if (!outputs[i].defined()) outputs[i] = at::zeros_like(sent(run, edges_[edges_out_[i][0]]));
  return outputs;
}

void CompositeImpl::start_from_rest(at::TensorList inputs) {
  const auto starts = [](const Edge& e) { return e.connection.from_rest && e.connection.delay > 0 && e.line.empty(); };
  if (std::none_of(edges_.begin(), edges_.end(), starts)) return;
  Tensors zeros;
  for (const at::Tensor& input : inputs) zeros.push_back(at::zeros_like(input.narrow(0, 0, 1)));
  Run run{zeros, 1, std::vector<Tensors>(nodes_.size())};
  run_at_rest(run);
  for (Edge& e : edges_)
    if (starts(e))
      e.line.assign(e.connection.delay,
                    e.from.node == outside ? zeros[e.from.index] : run.outputs[e.from.node][e.from.index]);
}

Tensors CompositeImpl::advance(at::TensorList inputs, std::int64_t steps) {
  if (!planned_) make_plan();
  TORCH_CHECK_VALUE(inputs.size() == inputs_.size(), title(), ": takes ", inputs_.size(), " inputs (", listed(inputs_),
                    "), but got ", inputs.size());
  if (is_within_network) return run_parts(inputs, steps);
  std::vector<Before> before;
  note_states(before);
  is_within_network = true;
  const auto leave = [](void*) { is_within_network = false; };
  const std::unique_ptr<bool, decltype(leave)> left(&is_within_network, leave);
  try {
    return run_parts(inputs, steps);
  } catch (...) {
    for (Before& each : before) put_back(each);
    throw;
  }
}

void CompositeImpl::note_states(std::vector<Before>& before) {
  before.push_back({.network = this});
  for (const int e : delayed_) before.back().lines.push_back(edges_[e].line);
  for (const Node& node : nodes_) {
    if (node.network) {
      node.network->note_states(before);
      continue;
    }
    for (Stateful* const module : node.stateful) {
      const std::size_t count = module->state_names().size();
      if (count == 0) continue;
      before.push_back({.module = module});
      for (std::size_t i = 0; i < count; ++i) before.back().states.push_back(module->own_state(i));
    }
  }
}

void CompositeImpl::put_back(Before& before) {
  if (before.network) {
    CompositeImpl& network = *before.network;
    for (std::size_t i = 0; i < before.lines.size(); ++i)
      network.edges_[network.delayed_[i]].line = std::move(before.lines[i]);
    network.write_buffers();
    return;
  }
  const Names names = before.module->state_names();
  for (std::size_t i = 0; i < names.size(); ++i) before.module->set_state(names[i], before.states[i]);
}

Tensors CompositeImpl::run_parts(at::TensorList inputs, std::int64_t steps) {
  if (steps > 0) start_from_rest(inputs);
  Run run{inputs, steps, std::vector<Tensors>(nodes_.size())};
  const auto sum = [&](const std::vector<int>& edges) {
    at::Tensor total;
    for (const int e : edges) add_to(total, arriving(run, edges_[e]));
    return total;
  };
  for (const Stage& stage : plan_) {
    if (stage.is_loop) {
      if (run_at_once(run, stage)) continue;
      refuse_samples(stage);
      run_loop(run, stage);
      continue;
    }
    Node& node = nodes_[stage.nodes[0]];
    Tensors into;
    into.reserve(node.edges_into.size());
    for (const auto& edges : node.edges_into) into.push_back(sum(edges));
    run.outputs[stage.nodes[0]] = run_node(node, into, steps);
  }
  Tensors outputs;
  outputs.reserve(edges_out_.size());
  for (const auto& edges : edges_out_) outputs.push_back(sum(edges));
  return outputs;
}

// --- Copies

std::shared_ptr<Stateful> CompositeImpl::fresh() const {
  auto copy = std::make_shared<CompositeImpl>(options_);
  copy->copy_network(*this);
  return copy;
}

void CompositeImpl::copy_network(const CompositeImpl& from) {
  options_ = from.options_;
  for (const Node& node : from.nodes_) add(node.name, node.part.clone());
  for (const Edge& edge : from.edges_)
    connect(from.name_of(edge.from, true), from.name_of(edge.to, false), edge.connection);
  aliases_ = from.aliases_;
}

}  // namespace spikeforge::nn
