#include "tools/nir/command.h"
#include "tools/nir/text.h"

#include "csrc/base/printable.h"
#include "csrc/nir/error.h"
#include "csrc/nir/read.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>

namespace spikeforge::nir {
namespace {

struct DiffOptions : ReadOptions {
  std::string a, b;
  double tolerance = 0;
};

class Comparison {
 public:
  // Numbers of any type are equal if they differ by no more than this part of the larger one.
  explicit Comparison(double tolerance) : tolerance_(tolerance) {}

  bool found_none() const { return !found_; }

  void graphs(const Graph& a, const Graph& b, const std::string& name) {
    const std::string shown = name.empty() ? "/" : name;
    const std::map<std::string, const Node*> in_a = by_name(a), in_b = by_name(b);
    for (const auto& [node, content] : in_a) {
      const auto other = in_b.find(node);
      const std::string inner = in_node(name, node);
      if (other == in_b.end())
        print_difference("- {}: {}", inner, content->type());
      else
        nodes(*content, *other->second, inner);
    }
    for (const auto& [node, content] : in_b)
      if (!in_a.contains(node)) print_difference("+ {}: {}", in_node(name, node), content->type());
    edges(a, b, shown);
    metadata(a.metadata, b.metadata, shown);
  }

 private:
  template <class... Arguments>
  void print_difference(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    found_ = true;
    fmt::print("{}\n", spikeforge::printable(fmt::format(format, std::forward<Arguments>(arguments)...)));
  }

  static std::map<std::string, const Node*> by_name(const Graph& graph) {
    std::map<std::string, const Node*> nodes;
    for (const NamedNode& node : graph.nodes) nodes.emplace(node.name, &node.node);
    return nodes;
  }

  void nodes(const Node& a, const Node& b, const std::string& name) {
    if (a.type() != b.type()) return print_difference("! {}: {} is {}", printable(name), a.type(), b.type());
    metadata(a.metadata, b.metadata, name);
    if (const Graph* graph = std::get_if<Graph>(&a.kind)) return graphs(*graph, std::get<Graph>(b.kind), name);

    std::map<std::string_view, std::string> settings_a, settings_b;
    for_each_setting(a.kind, [&](std::string_view field, const std::string& text) { settings_a.emplace(field, text); });
    for_each_setting(b.kind, [&](std::string_view field, const std::string& text) { settings_b.emplace(field, text); });
    compare(settings_a, settings_b, name, [&](std::string_view field, const std::string& x, const std::string& y) {
      if (x != y) print_difference("! {}, {}: {} is {}", printable(name), field, x, y);
    });

    std::map<std::string_view, Array> arrays_a, arrays_b;
    for_each_array(a.kind, [&](std::string_view field, const Array& array) { arrays_a.emplace(field, array); });
    for_each_array(b.kind, [&](std::string_view field, const Array& array) { arrays_b.emplace(field, array); });
    compare(arrays_a, arrays_b, name,
            [&](std::string_view field, const Array& x, const Array& y) { arrays(x, y, name, field); });
  }

  template <class T, class Both>
  void compare(const std::map<std::string_view, T>& a, const std::map<std::string_view, T>& b, const std::string& name,
               Both&& both) {
    for (const auto& [field, value] : a) {
      const auto other = b.find(field);
      if (other == b.end())
        print_difference("- {}, {}", printable(name), field);
      else
        both(field, value, other->second);
    }
    for (const auto& [field, value] : b)
      if (!a.contains(field)) print_difference("+ {}, {}", printable(name), field);
  }

  void arrays(const Array& a, const Array& b, const std::string& name, std::string_view field) {
    if (a == b) return;
    if (a.shape() != b.shape())
      return print_difference("! {}, {}: shape {} is {}", printable(name), field, text_of(a.shape()),
                              text_of(b.shape()));
    if (a.dtype() != b.dtype() && tolerance_ == 0)
      print_difference("! {}, {}: {} is {}", printable(name), field, name_of(a.dtype()), name_of(b.dtype()));
    std::int64_t differing = 0;
    double most = 0;
    for (std::int64_t i = 0; i < a.count(); ++i) {
      const double x = a.at(i), y = b.at(i);
      if (are_equal(x, y)) continue;
      ++differing;
      most = std::fmax(most, std::fabs(x - y));
    }
    if (differing)
      print_difference("! {}, {}: {} of {} values differ, by up to {:.6g}", printable(name), field, differing,
                       a.count(), most);
  }

  bool are_equal(double x, double y) const {
    if (x == y || (std::isnan(x) && std::isnan(y))) return true;
    return std::fabs(x - y) <= tolerance_ * std::fmax(std::fabs(x), std::fabs(y)) && std::isfinite(x - y);
  }
  bool are_equal(const Value& a, const Value& b) const {
    const auto *x = std::get_if<Array>(&a), *y = std::get_if<Array>(&b);
    if (!x || !y || tolerance_ == 0) return a == b;
    bool equal = x->shape() == y->shape();
    for (std::int64_t i = 0; equal && i < x->count(); ++i) equal = are_equal(x->at(i), y->at(i));
    return equal;
  }

  void edges(const Graph& a, const Graph& b, const std::string& graph) {
    if (a.edges == b.edges) return;
    std::map<std::pair<std::string, std::string>, int> surplus;
    for (const Edge& edge : a.edges) ++surplus[{edge.from, edge.to}];
    for (const Edge& edge : b.edges) --surplus[{edge.from, edge.to}];
    bool are_the_same = true;
    for (const auto& [edge, count] : surplus) {
      if (count == 0) continue;
      are_the_same = false;
      print_difference("{} {}, edges: {} -> {}{}", count > 0 ? '-' : '+', printable(graph), printable(edge.first),
                       printable(edge.second), std::abs(count) > 1 ? fmt::format(" ({} times)", std::abs(count)) : "");
    }
    if (are_the_same) print_difference("! {}, edges: the same in another order", printable(graph));
  }

  void metadata(const Group& a, const Group& b, const std::string& name, const std::string& place = "") {
    for (const Member& member : a.members) {
      const Member* other = b.find(member.name);
      if (!other)
        print_difference("- {}, metadata/{}", printable(name), printable(place + member.name));
      else if (const auto* x = std::get_if<Group>(&member.value), *y = std::get_if<Group>(&other->value); x && y)
        metadata(*x, *y, name, place + member.name + "/");
      else if (!are_equal(member.value, other->value))
        print_difference("! {}, metadata/{}", printable(name), printable(place + member.name));
    }
    for (const Member& member : b.members)
      if (!a.find(member.name)) print_difference("+ {}, metadata/{}", printable(name), printable(place + member.name));
  }

  double tolerance_;
  bool found_ = false;
};

int diff(const DiffOptions& options) {
  const Graph a = read(options.a, options.limits), b = read(options.b, options.limits);
  Comparison comparison(options.tolerance);
  comparison.graphs(a, b, "");
  return comparison.found_none() ? 0 : 1;
}

}  // namespace

Command add_diff(CLI::App& program) {
  const auto options = std::make_shared<DiffOptions>();
  CLI::App* const app =
      program.add_subcommand("diff", "Print what differs between two graphs; status 1 if anything does");
  app->add_option("a", options->a, "A NIR file")->required();
  app->add_option("b", options->b, "Another")->required();
  app->add_option(
         "--tolerance", options->tolerance,
         "Numbers of any type are equal if they differ by no more than this part of the larger one; by default 0")
      ->check(CLI::NonNegativeNumber.description(""));
  add_limits(*app, *options);
  return {app, [options] { return diff(*options); }};
}

}  // namespace spikeforge::nir
