#include "tools/nir/command.h"
#include "tools/nir/text.h"

#include "csrc/base/printable.h"
#include "csrc/nir/data.h"
#include "csrc/nir/error.h"
#include "csrc/nir/read.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

namespace spikeforge::nir {
namespace {

struct InfoOptions : ReadOptions {
  std::string file;
  bool json = false, is_data = false;
};

// The rule by which shapes are inferred; none if the graph is not sound.
using Rule = std::optional<ShapeRule>;

Rule rule_for(const InfoOptions& options, const Report& report) {
  return report.defect.empty() ? Rule(options.shapes) : std::nullopt;
}

struct Count {
  std::int64_t nodes = 0, edges = 0, parameters = 0;
};

void count(const Graph& graph, Count& total) {
  total.nodes += static_cast<std::int64_t>(graph.nodes.size());
  total.edges += static_cast<std::int64_t>(graph.edges.size());
  for (const NamedNode& node : graph.nodes) {
    if (const Graph* inner = std::get_if<Graph>(&node.node.kind)) count(*inner, total);
    for_each_array(node.node.kind, [&](std::string_view, const Array& array) { total.parameters += array.count(); });
  }
}

// Shapes that cannot be inferred are omitted, with a warning.
std::vector<NodeShapes> shapes_or_none(const Graph& graph, Rule rule, Report* report) {
  try {
    if (rule) return infer_shapes(graph, *rule, report);
  } catch (const Error& error) {
    if (report) report->warn(error.what());
  }
  return std::vector<NodeShapes>(graph.nodes.size());
}

// --- for a person --------------------------------------------------------------------------------------------------

struct Row {
  std::string name, type, in, out, fields;
};

std::string shape_text(const std::optional<Shape>& shape) { return shape ? text_of(*shape) : "?"; }

void add_rows(const Graph& graph, const std::string& name, const std::vector<NodeShapes>& shapes, Rule rule,
              std::vector<Row>& rows) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const NamedNode& node = graph.nodes[i];
    std::vector<std::string> fields;
    for_each_setting(node.node.kind, [&](std::string_view field, const std::string& text) {
      if (field != "shape" && field != "input_type" && field != "input_shape")
        fields.push_back(fmt::format("{} {}", field, text));
    });
    for_each_array(node.node.kind, [&](std::string_view field, const Array& array) {
      fields.push_back(
          fmt::format("{} {}{} {}", field, name_of(array.dtype()), text_of(array.shape()), text_of_range(array)));
    });
    const std::string inner = in_node(name, node.name);
    rows.push_back({printable(inner), std::string(node.node.type()), shape_text(shapes[i].in),
                    shape_text(shapes[i].out), fmt::format("{}", fmt::join(fields, "; "))});
    if (const Graph* nested = std::get_if<Graph>(&node.node.kind))
      add_rows(*nested, inner, shapes_or_none(*nested, rule, nullptr), rule, rows);
  }
}

void print_table(const Graph& graph, const InfoOptions& options, Report& report) {
  Count total;
  count(graph, total);
  fmt::print("{}: NIR {}, {} nodes, {} edges, {} parameters\n", printable(options.file),
             report.version.empty() ? "of unknown version" : printable(report.version), total.nodes, total.edges,
             total.parameters);
  std::vector<Row> rows = {{"node", "type", "in", "out", "fields"}};
  const Rule rule = rule_for(options, report);
  add_rows(graph, "", shapes_or_none(graph, rule, &report), rule, rows);
  std::size_t name = 0, type = 0, in = 0, out = 0;
  for (const Row& row : rows) {
    name = std::max(name, row.name.size());
    type = std::max(type, row.type.size());
    in = std::max(in, row.in.size());
    out = std::max(out, row.out.size());
  }
  for (const Row& row : rows)
    fmt::print("  {:{}}  {:{}}  {:{}}  {:{}}  {}\n", row.name, name, row.type, type, row.in, in, row.out, out,
               row.fields);
  if (!graph.metadata.empty()) {
    fmt::print("  metadata:");
    for (const Member& member : graph.metadata.members) fmt::print(" {}", printable(member.name));
    fmt::print("\n");
  }
  if (!report.defect.empty()) fmt::print("  not sound: {}\n", spikeforge::printable(report.defect));
  for (const std::string& warning : report.warnings) fmt::print("  warning: {}\n", spikeforge::printable(warning));
}

// --- for a program -------------------------------------------------------------------------------------------------

std::string json_of(const Value& value) {
  if (const Group* group = std::get_if<Group>(&value)) {
    std::vector<std::string> members;
    for (const Member& member : group->members)
      members.push_back(fmt::format("{}: {}", in_quotes(member.name), json_of(member.value)));
    return fmt::format("{{{}}}", fmt::join(members, ", "));
  }
  if (const Strings* strings = std::get_if<Strings>(&value)) {
    if (strings->shape.empty()) return in_quotes(strings->values[0]);
    std::vector<std::string> texts;
    for (const std::string& text : strings->values) texts.push_back(in_quotes(text));
    return fmt::format("[{}]", fmt::join(texts, ", "));
  }
  const Array& array = std::get<Array>(value);
  const Range range = range_of(array);
  if (array.shape().empty())
    return array.dtype() == DType::boolean ? (array.at(0) != 0 ? "true" : "false") : json_number(array.at(0));
  return fmt::format("{{\"dtype\": \"{}\", \"shape\": {}, \"min\": {}, \"max\": {}, \"has_nan\": {}}}",
                     name_of(array.dtype()), json_shape(array.shape()), json_number(range.least),
                     json_number(range.greatest), range.has_nan);
}

std::string json_of_parameter(const Array& array) {
  const Range range = range_of(array);
  return fmt::format("{{\"dtype\": \"{}\", \"shape\": {}, \"min\": {}, \"max\": {}, \"has_nan\": {}}}",
                     name_of(array.dtype()), json_shape(array.shape()), json_number(range.least),
                     json_number(range.greatest), range.has_nan);
}

std::string json_setting(const std::string& text) {
  const bool is_number = text.find_first_not_of("0123456789-") == std::string::npos;
  return is_number || text.starts_with('[') ? text : in_quotes(text);
}

std::string json_of(const Graph& graph, const std::vector<NodeShapes>& shapes, Rule rule) {
  std::vector<std::string> nodes, edges;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const NamedNode& node = graph.nodes[i];
    const auto shape = [](const std::optional<Shape>& s) { return s ? json_shape(*s) : "null"; };
    std::string text = fmt::format("{{\"name\": {}, \"type\": \"{}\", \"in\": {}, \"out\": {}", in_quotes(node.name),
                                   node.node.type(), shape(shapes[i].in), shape(shapes[i].out));
    if (const Graph* nested = std::get_if<Graph>(&node.node.kind)) {
      text += fmt::format(", \"graph\": {}", json_of(*nested, shapes_or_none(*nested, rule, nullptr), rule));
    } else {
      std::vector<std::string> settings, parameters;
      for_each_setting(node.node.kind, [&](std::string_view field, const std::string& value) {
        settings.push_back(fmt::format("\"{}\": {}", field, json_setting(value)));
      });
      for_each_array(node.node.kind, [&](std::string_view field, const Array& array) {
        parameters.push_back(fmt::format("\"{}\": {}", field, json_of_parameter(array)));
      });
      text += fmt::format(", \"settings\": {{{}}}, \"parameters\": {{{}}}", fmt::join(settings, ", "),
                          fmt::join(parameters, ", "));
    }
    if (!node.node.metadata.empty()) text += fmt::format(", \"metadata\": {}", json_of(Value(node.node.metadata)));
    nodes.push_back(text + "}");
  }
  for (const Edge& edge : graph.edges)
    edges.push_back(fmt::format("[{}, {}]", in_quotes(edge.from), in_quotes(edge.to)));
  std::string text =
      fmt::format("{{\"nodes\": [{}], \"edges\": [{}]", fmt::join(nodes, ",\n    "), fmt::join(edges, ", "));
  if (!graph.metadata.empty()) text += fmt::format(", \"metadata\": {}", json_of(Value(graph.metadata)));
  return text + "}";
}

void print_json(const Graph& graph, const InfoOptions& options, Report& report) {
  Count total;
  count(graph, total);
  const Rule rule = rule_for(options, report);
  const std::string content = json_of(graph, shapes_or_none(graph, rule, &report), rule);
  std::vector<std::string> warnings;
  for (const std::string& warning : report.warnings) warnings.push_back(in_quotes(warning));
  fmt::print("{{\"file\": {}, \"version\": {}, \"parameters\": {},\n  \"warnings\": [{}],\n{}  \"graph\": {}}}\n",
             in_quotes(options.file), report.version.empty() ? "null" : in_quotes(report.version), total.parameters,
             fmt::join(warnings, ", "),
             report.defect.empty() ? "" : fmt::format("  \"defect\": {},\n", in_quotes(report.defect)), content);
}

// --- NIRGraphData

std::string text_of_data(const GriddedData& data) {
  const Shape& shape = data.data.shape();
  return fmt::format("{} samples, {} steps of {:.6g} s, {} neurons: {}", shape[0], shape[1], data.dt, shape[2],
                     text_of_range(data.data));
}
std::string text_of_data(const EventData& data) {
  std::int64_t events = 0;
  for (std::int64_t i = 0; i < data.index.count(); ++i) events += data.index.at(i) >= 0;
  return fmt::format("{} samples, {} events of {} neurons within {:.6g} s{}", data.index.shape()[0], events,
                     data.neurons, data.t_max, data.value ? ": " + text_of_range(*data.value) : "");
}

int info_of_data(const InfoOptions& options) {
  for (const Recording& recording : read_data(options.file, options.limits))
    fmt::print("{}, {}: {}\n", printable(recording.node), printable(recording.observable),
               std::visit([](const auto& data) { return text_of_data(data); }, recording.data));
  return 0;
}

int info(const InfoOptions& options) {
  if (options.is_data) return info_of_data(options);
  Report report;
  const Graph graph = read_to_look(options.file, options.limits, report);
  if (options.json)
    print_json(graph, options, report);
  else
    print_table(graph, options, report);
  return 0;
}

}  // namespace

Command add_info(CLI::App& program) {
  const auto options = std::make_shared<InfoOptions>();
  options->shapes = ShapeRule::tolerant;
  CLI::App* const app =
      program.add_subcommand("info", "Print nodes, shapes, the ranges of parameters, version and warnings");
  app->add_option("file", options->file, "A NIR file")->required();
  CLI::Option* const json = app->add_flag("--json", options->json, "Print JSON, for programs");
  app->add_flag("--data", options->is_data, "The file is NIRGraphData: recordings instead of a graph")->excludes(json);
  add_shape_rule(*app, *options);
  add_limits(*app, *options);
  return {app, [options] { return info(*options); }};
}

}  // namespace spikeforge::nir
