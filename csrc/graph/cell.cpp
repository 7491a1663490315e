#include "csrc/graph/cell.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace spikeforge::graph {
namespace {

// Function names are not reserved: only functions are followed by a parenthesis, so a new function does not invalidate
// existing texts.
constexpr std::string_view reserved[] = {"and", "false", "inf", "nan", "neuron", "not", "or", "return", "true"};

void check_name(std::string_view what, std::string_view name) {
  if (is_reserved(name)) throw GraphError(fmt::format("\"{}\" is a reserved word, and cannot name {}", name, what));
  if (name.size() > most_name_length)
    throw GraphError(
        fmt::format("a name has at most {} characters; that of {} has {}", most_name_length, what, name.size()));
  if (!is_name(name))
    throw GraphError(
        fmt::format("\"{}\" cannot name {}: a name is a letter or _, then letters, digits and _", name, what));
}

void check_names(const Signature& signature) {
  check_name("a neuron", signature.name);
  std::set<std::string_view> seen;
  const auto check = [&](std::string_view what, std::string_view name) {
    check_name(what, name);
    if (!seen.insert(name).second) throw GraphError(fmt::format("two arguments are called {}", name));
  };
  for (const std::string& input : signature.inputs) check("an input", input);
  for (const State& state : signature.states) check("a state", state.name);
  for (const std::string& param : signature.params) check("a parameter", param);
}

}  // namespace

bool is_reserved(std::string_view text) { return std::ranges::find(reserved, text) != std::end(reserved); }

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= most_name_length && is_letter(text[0]) && !is_reserved(text) &&
         std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c); });
}

std::string text_of(const Signature& signature) {
  std::vector<std::string_view> states;
  for (const State& state : signature.states) states.push_back(state.name);
  return fmt::format("{}; {}; {}", fmt::join(signature.inputs, ", "), fmt::join(states, ", "),
                     fmt::join(signature.params, ", "));
}

Cell::Cell(Signature signature) : signature_(std::move(signature)) {
  if (signature_.inputs.empty())
    throw GraphError("a neuron has at least one input: the number of steps is that of its inputs");
  const std::size_t count = input_count() + state_count() + param_count();
  if (count > most_arguments)
    throw GraphError(
        fmt::format("a neuron has at most {} inputs, states and parameters together, not {}", most_arguments, count));
  check_names(signature_);
  for (const std::string& input : signature_.inputs) graph_.argument(input);
  for (const State& state : signature_.states) graph_.argument(state.name);
  for (const std::string& param : signature_.params) graph_.argument(param);
}

void Cell::finish(std::span<const Id> outputs, std::span<const Id> next_states) {
  if (outputs.empty() || outputs.size() > most_outputs)
    throw GraphError(fmt::format("a neuron has 1 to {} outputs, not {}", most_outputs, outputs.size()));
  if (next_states.size() != state_count())
    throw GraphError(fmt::format("{} next state{} for a neuron with {} ({})", next_states.size(),
                                 next_states.size() == 1 ? "" : "s", state_count(), text_of(signature_)));
  const auto add = [&](std::string_view what, Id id) {
    if (graph_.kind(id) != Kind::number)
      throw GraphError(fmt::format("{} is a number, not a boolean; write where(condition, 1, 0)", what));
    graph_.add_result(id);
  };
  for (const Id output : outputs) add("an output", output);
  for (const Id next : next_states) add("a next state", next);
}

}  // namespace spikeforge::graph
