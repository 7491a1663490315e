#include "csrc/graph/surrogate.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/number_text.h"
#include "csrc/neuron/surrogate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace spikeforge::graph {
namespace {

static_assert(std::tuple_size_v<decltype(Surrogate::args)> == max_surrogate_args);

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double most_of_a_whole_number = 1e6;

constexpr SurrogateArgument positive(const char* name, double value) { return {name, value, 0, false, false}; }
constexpr SurrogateArgument above(const char* name, double value, double lowest) {
  return {name, value, lowest, false, false};
}
constexpr SurrogateArgument finite(const char* name, double value) { return {name, value, -infinity, false, false}; }
constexpr SurrogateArgument whole(const char* name, double value, double lowest) {
  return {name, value, lowest, true, true};
}

template <class... Argument>
constexpr std::array<SurrogateArgument, sizeof...(Argument)> listed(Argument... arguments) {
  return {arguments...};
}

#define SPIKEFORGE_SURROGATE(name, Struct, ...) constexpr auto arguments_of_##name = listed(__VA_ARGS__);
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE

constexpr SurrogateDescription table[] = {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) {#name, arguments_of_##name},
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
};

void check_argument(std::string_view surrogate, const SurrogateArgument& argument, double value) {
  const bool in_range = argument.lowest_is_legal ? value >= argument.lowest : value > argument.lowest;
  const bool fits = !argument.is_whole || (value == std::floor(value) && value <= most_of_a_whole_number);
  if (std::isfinite(value) && in_range && fits) return;
  const std::string bound =
      argument.lowest == -infinity
          ? ""
          : fmt::format(" {} {}", argument.lowest_is_legal ? "of at least" : "above", argument.lowest);
  throw GraphError(fmt::format("surrogate {}: {} must be a {} number{}, but is {}", surrogate, argument.name,
                               argument.is_whole ? "whole" : "finite", bound, value));
}

Surrogate make(SurrogateKind kind, std::span<const double> numbers) {
  const SurrogateDescription& known = graph::describe(kind);
  if (!numbers.empty() && numbers.size() != known.args.size())
    throw GraphError(fmt::format("surrogate {} takes {} number{}, or none for its defaults, but {} are given",
                                 known.name, known.args.size(), known.args.size() == 1 ? "" : "s", numbers.size()));
  Surrogate result{kind, {}};
  for (std::size_t i = 0; i < known.args.size(); ++i) {
    result.args[i] = numbers.empty() ? known.args[i].default_value : numbers[i];
    check_argument(known.name, known.args[i], result.args[i]);
  }
  return result;
}

}  // namespace

std::span<const SurrogateDescription> surrogate_descriptions() { return table; }

const SurrogateDescription& describe(SurrogateKind kind) { return table[static_cast<std::size_t>(kind)]; }

Surrogate make_surrogate(std::string_view name, std::span<const double> numbers) {
  if (name == "none") {
    if (!numbers.empty()) throw GraphError("the surrogate none has no arguments");
    return {};
  }
  const auto known = std::ranges::find(table, name, &SurrogateDescription::name);
  if (known != std::end(table)) return make(static_cast<SurrogateKind>(known - std::begin(table)), numbers);
  std::vector<std::string_view> names;
  for (const SurrogateDescription& description : table) names.push_back(description.name);
  throw GraphError(fmt::format("unknown surrogate \"{}\"; known are {}", name, fmt::join(names, ", ")));
}

Surrogate make_surrogate(SurrogateKind kind, std::initializer_list<double> numbers) {
  return make(kind, {numbers.begin(), numbers.size()});
}

std::string text_of(const Surrogate& surrogate) {
  if (!surrogate.kind) return "none";
  const SurrogateDescription& known = describe(*surrogate.kind);
  std::vector<std::string> numbers;
  for (std::size_t i = 0; i < known.args.size(); ++i) numbers.push_back(text_of(surrogate.args[i]));
  return fmt::format("{}({})", known.name, fmt::join(numbers, ", "));
}

}  // namespace spikeforge::graph
