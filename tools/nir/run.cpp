#include "tools/nir/network_options.h"

#include "csrc/nir/error.h"
#include "csrc/nir/replacement_file.h"
#include "csrc/nn/monitor.h"
#include "csrc/nn/npy.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>

namespace spikeforge::nir {
namespace {

struct RunOptions : NetworkOptions {
  std::vector<std::string> inputs, records, membranes, currents, first_membranes, first_currents;
  std::string output;
};

// A node of a graph or a nested graph, and its name in the network.
struct Place {
  const NamedNode* node = nullptr;
  std::string path;
};

Place find(const Graph& graph, std::string_view name) {
  const std::size_t slash = name.find('/');
  const std::vector<std::string> paths = module_names(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].name != name.substr(0, slash)) continue;
    if (slash == std::string_view::npos) return {&graph.nodes[i], paths[i]};
    const Graph* inner = std::get_if<Graph>(&graph.nodes[i].node.kind);
    if (!inner) return {};
    Place place = find(*inner, name.substr(slash + 1));
    place.path = paths[i] + "." + place.path;
    return place;
  }
  return {};
}

// NODE=FILE; both may contain a "=".
struct Request {
  std::string node, file;
};

Request split(const Graph& graph, const std::string& text, const std::string& option) {
  std::optional<Request> request;
  for (std::size_t at = text.find('='); at != std::string::npos; at = text.find('=', at + 1)) {
    const Request here{text.substr(0, at), text.substr(at + 1)};
    const bool is_node = find(graph, here.node).node;
    if (!request || is_node) request = here;
    if (is_node) break;
  }
  if (!request || request->node.empty() || request->file.empty())
    throw Error("", "", fmt::format("{} {}: expected NODE=FILE", option, printable(text)));
  return *request;
}

class Runner {
 public:
  explicit Runner(const RunOptions& options)
      : options_(options), graph_(options.read_graph()), network_(options.network(graph_)) {}

  void run() {
    const nn::Tensors inputs = read_inputs();
    std::vector<Request> records;
    nn::Names names;
    for (const std::string& text : options_.records) {
      records.push_back(split(graph_, text, "--record"));
      names.push_back(output_of(records.back().node));
    }
    for (const std::string& text : options_.membranes) {
      records.push_back(split(graph_, text, "--record-v"));
      names.push_back(membrane_of(records.back().node));
    }
    for (const std::string& text : options_.currents) {
      records.push_back(split(graph_, text, "--record-i"));
      names.push_back(current_of(records.back().node));
    }
    for (const std::string& text : options_.first_membranes)
      start(split(graph_, text, "--start-v"), &Runner::membrane_of);
    for (const std::string& text : options_.first_currents)
      start(split(graph_, text, "--start-i"), &Runner::current_of);
    const nn::Names outputs = network_->output_names();
    if (!options_.output.empty() && outputs.size() != 1)
      refuse("", outputs.empty() ? "there is no Output" : "there are several Outputs: use --record NODE=FILE for each");

    const c10::NoGradGuard no_grad;
    nn::Names recorded = names;
    std::erase(recorded, "");
    const nn::Monitor monitor(network_, recorded);
    network_->expect(inputs[0].size(0));
    nn::Tensors results;
    try {
      results = network_->run(inputs, inputs[0].size(0));
    } catch (const c10::Error& error) {
      refuse("", error.what_without_backtrace());
    }

    std::deque<ReplacementFile> files;  // all of them are written before any is renamed
    const auto write = [&](const std::string& file, const at::Tensor& values) {
      try {
        files.emplace_back(file);
        nn::write_npy(files.back().path(), as_given(values).to(c10::kCPU, options_.module.dtype));
      } catch (const std::runtime_error& error) {
        throw Error(file, "", "", error.what());
      }
    };
    if (!options_.output.empty()) write(options_.output, results[0]);
    for (std::size_t i = 0; i < records.size(); ++i)
      write(records[i].file, names[i].empty() ? input_of(records[i].node, inputs) : monitor[names[i]]);
    for (ReplacementFile& file : files) file.replace();
  }

 private:
  [[noreturn]] void refuse(const std::string& node, std::string reason) const {
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    throw Error(options_.file, node, "", reason);
  }

  // Each input of the network, [T, *shape].
  nn::Tensors read_inputs() {
    nn::Names names = network_->input_names();
    if (names.empty()) refuse("/", "there is no Input");
    nn::Tensors inputs(names.size());
    for (const std::string& text : options_.inputs) {
      std::size_t index = 0;
      std::string file = text;
      if (names.size() > 1) {
        const Request request = split(graph_, text, "--input");
        const Place place = find(graph_, request.node);
        index = std::find(names.begin(), names.end(), place.path) - names.begin();
        if (!place.node || index == names.size()) refuse(request.node, "there is no such Input");
        file = request.file;
      }
      inputs[index] = read_input(file, names[index]);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) refuse(names[i], "no --input is given for this Input");
      if (inputs[i].size(0) != inputs[0].size(0))
        refuse(names[i], fmt::format("its input has {} steps, but that of {} has {}", inputs[i].size(0), names[0],
                                     inputs[0].size(0)));
    }
    return inputs;
  }

  at::Tensor read_input(const std::string& file, const std::string& name) {
    at::Tensor x;
    try {
      x = nn::read_npy(file);
    } catch (const std::runtime_error& error) {
      throw Error(file, "", "", error.what());
    }
    if (x.dim() < 1 || x.size(0) < 1)
      throw Error(file, "", "",
                  "expected [T, *shape] with at least one step, but its shape is " + text_of(x.sizes().vec()));
    const std::vector<NodeShapes> shapes = infer_shapes(graph_, options_.shapes);
    const std::vector<std::string> names = module_names(graph_);
    for (std::size_t i = 0; i < names.size(); ++i)
      if ((names[i] == name || "input_" + names[i] == name) && shapes[i].in)
        take_batch(x, *shapes[i].in, graph_.nodes[i].name, file);
    x = x.to(options_.module.device, options_.module.dtype);
    return adds_batch() ? x.unsqueeze(1) : x;
  }

  // Of [T, *shape] or [T, batch, *shape], the same batch for every input.
  void take_batch(const at::Tensor& x, const Shape& shape, const std::string& node, const std::string& file) {
    const at::IntArrayRef sizes = x.sizes(), step(shape);
    const bool is_one = sizes.slice(1) == step;
    if (!is_one && !(x.dim() >= 2 && sizes.slice(2) == step))
      refuse(node, fmt::format("expected T steps of shape {}, or of a batch of it, but {} has shape {}", text_of(shape),
                               printable(file), text_of(sizes.vec())));
    const std::optional<std::int64_t> batch = is_one ? std::nullopt : std::optional(sizes[1]);
    if (is_batch_known_ && batch != batch_)
      refuse(node, fmt::format("{} has another batch than the other inputs: its shape is {}", printable(file),
                               text_of(sizes.vec())));
    batch_ = batch;
    is_batch_known_ = true;
  }

  // TimeDistributed accepts only batches.
  bool adds_batch() const { return options_.module.fold_time && !batch_; }
  at::Tensor as_given(const at::Tensor& values) const { return adds_batch() ? values.squeeze(1) : values; }

  // A state before the first step, [*shape] or [batch, *shape].
  void start(const Request& request, std::string (Runner::*name_of)(const std::string&) const) {
    const std::string name = (this->*name_of)(request.node);
    at::Tensor value;
    try {
      value = nn::read_npy(request.file);
    } catch (const std::runtime_error& error) {
      throw Error(request.file, "", "", error.what());
    }
    const Shape shape = shape_at(graph_, request.node, {});
    const bool is_one = value.sizes() == at::IntArrayRef(shape);
    Shape whole = shape;
    if (batch_ || adds_batch()) whole.insert(whole.begin(), batch_.value_or(1));
    if (!is_one && value.sizes() != at::IntArrayRef(whole))
      refuse(request.node, fmt::format("expected a state of shape {}, but {} has shape {}", text_of(whole),
                                       printable(request.file), text_of(value.sizes().vec())));
    const auto type = nn::state_type(options_.module.dtype);
    network_->set(name, value.expand(whole).to(options_.module.device, type).contiguous());
  }

  // The shape of a node's input; a node in a nested graph is graph/node.
  Shape shape_at(const Graph& graph, std::string_view node, const std::optional<Shape>& arriving) const {
    const std::vector<NodeShapes> shapes = infer_shapes(graph, options_.shapes, nullptr, arriving);
    const std::size_t slash = node.find('/');
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (graph.nodes[i].name != node.substr(0, slash) || !shapes[i].in) continue;
      if (slash == std::string_view::npos) return *shapes[i].in;
      return shape_at(std::get<Graph>(graph.nodes[i].node.kind), node.substr(slash + 1), shapes[i].in);
    }
    refuse(std::string(node), "its shape cannot be inferred");
  }

  Place place_of(const std::string& node) const {
    const Place place = find(graph_, node);
    if (!place.node) refuse(node, "there is no such node to record");
    return place;
  }

  // The name of a node's output in a Monitor. Empty: an Input of the network, whose output is the network's input.
  std::string output_of(const std::string& node) const {
    const Place place = place_of(node);
    const Kind& kind = place.node->node.kind;
    if (std::holds_alternative<Input>(kind)) {
      if (place.path.find('.') == std::string::npos) return "";
      refuse(node, "the Input of a nested graph cannot be recorded; record what leads to the graph");
    }
    if (std::holds_alternative<Output>(kind)) return place.path;
    if (const Graph* inner = std::get_if<Graph>(&kind)) {
      for (std::size_t i = 0; i < inner->nodes.size(); ++i)
        if (std::holds_alternative<Output>(inner->nodes[i].node.kind))
          return place.path + "." + module_names(*inner)[i];
      refuse(node, "this graph has no Output");
    }
    return place.path + ".out";
  }

  std::string membrane_of(const std::string& node) const {
    const Place place = place_of(node);
    const bool has_membrane = std::visit(
        []<class N>(const N& n) {
          return requires { n.r; };
        },
        place.node->node.kind);
    if (!has_membrane) refuse(node, fmt::format("{} has no membrane to record", place.node->node.type()));
    return place.path + ".v";
  }

  std::string current_of(const std::string& node) const {
    const Place place = place_of(node);
    const bool has_current = std::visit(
        []<class N>(const N& n) {
          return requires { n.tau_syn; };
        },
        place.node->node.kind);
    if (!has_current) refuse(node, fmt::format("{} has no current to record", place.node->node.type()));
    return place.path + ".i";
  }

  at::Tensor input_of(const std::string& node, const nn::Tensors& inputs) const {
    const nn::Names names = network_->input_names();
    const auto found = std::find(names.begin(), names.end(), find(graph_, node).path);
    if (found == names.end()) refuse(node, "no edge starts at this input, so it cannot be recorded");
    return inputs[found - names.begin()];
  }

  const RunOptions& options_;
  Graph graph_;
  nn::Composite network_;
  std::optional<std::int64_t> batch_;  // none: inputs are [T, *shape]
  bool is_batch_known_ = false;
};

int run(const RunOptions& options) {
  if (options.output.empty() && options.records.empty() && options.membranes.empty() && options.currents.empty())
    throw Error("", "", "no output was requested: use --output, --record, --record-v or --record-i");
  Runner(options).run();
  return 0;
}

}  // namespace

Command add_run(CLI::App& program) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* const app = program.add_subcommand("run", "Run a network over an input");
  app->add_option("file", options->file, "A NIR file of any version")->required();
  app->add_option("--input", options->inputs,
                  "x.npy, [T, *shape] or [T, batch, *shape]; NODE=x.npy for each Input if there are several")
      ->required()
      ->expected(1)
      ->take_all();
  app->add_option("--output", options->output, "File for the output, in the format of the input");
  app->add_option("--record", options->records, "NODE=out.npy: the output of a node; graph/node in a nested graph")
      ->expected(1)
      ->take_all();
  app->add_option("--record-v", options->membranes, "NODE=out.npy: a membrane after each step's reset")
      ->expected(1)
      ->take_all();
  app->add_option("--record-i", options->currents, "NODE=out.npy: the current of a CubaLI or CubaLIF after each step")
      ->expected(1)
      ->take_all();
  app->add_option("--start-v", options->first_membranes, "NODE=v.npy: a membrane before the first step, else 0")
      ->expected(1)
      ->take_all();
  app->add_option("--start-i", options->first_currents, "NODE=i.npy: a current before the first step, else 0")
      ->expected(1)
      ->take_all();
  add_network_options(*app, *options);
  return {app, [options] { return run(*options); }};
}

}  // namespace spikeforge::nir
