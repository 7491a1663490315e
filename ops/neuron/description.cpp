#include <spikeforge/ops/neuron/arguments.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace spikeforge::ops {
namespace {

constexpr Legal any = Legal::any;
constexpr Legal positive_only = Legal::positive;

constexpr const char* one_state[] = {"v"};
constexpr const char* two_states[] = {"v", "w"};

constexpr ParamDescription if_params[] = {{"v_threshold", 1, any}, {"v_reset", 0, any}};
constexpr ParamDescription lif_params[] = {{"tau", 2, positive_only}, {"v_threshold", 1, any}, {"v_reset", 0, any}};
constexpr ParamDescription plif_params[] = {{"w", 0, any}, {"v_threshold", 1, any}, {"v_reset", 0, any}};
constexpr ParamDescription qif_params[] = {{"tau", 2, positive_only}, {"v_c", .8, any},   {"a0", 1, any},
                                           {"v_threshold", 1, any},   {"v_rest", 0, any}, {"v_reset", -.1, any}};
constexpr ParamDescription eif_params[] = {{"tau", 2, positive_only}, {"delta_t", 1, positive_only},
                                           {"theta_rh", .8, any},     {"v_threshold", 1, any},
                                           {"v_rest", 0, any},        {"v_reset", -.1, any}};
constexpr ParamDescription izhikevich_params[] = {{"tau", 2, positive_only},
                                                  {"v_c", .8, any},
                                                  {"a0", 1, any},
                                                  {"v_threshold", 1, any},
                                                  {"v_rest", -.1, any},
                                                  {"w_rest", 0, any},
                                                  {"v_reset", 0, any},
                                                  {"tau_w", 2, positive_only},
                                                  {"a", 0, any},
                                                  {"b", 0, any}};

struct Argument {
  const char* name;
  double default_value;
  double lowest;
  bool lowest_is_legal;
  bool is_whole;
};

constexpr double infinity = std::numeric_limits<double>::infinity();

constexpr Argument positive(const char* name, double value) { return {name, value, 0, false, false}; }
constexpr Argument above(const char* name, double value, double lowest) { return {name, value, lowest, false, false}; }
constexpr Argument finite(const char* name, double value) { return {name, value, -infinity, false, false}; }
constexpr Argument whole(const char* name, double value, double lowest) { return {name, value, lowest, true, true}; }

struct SurrogateDescription {
  std::string_view name;
  std::vector<Argument> args;
};

const std::vector<SurrogateDescription>& surrogates() {
  static const std::vector<SurrogateDescription> table = {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) {#name, {__VA_ARGS__}},
#include <spikeforge/neuron/surrogate.def>
#undef SPIKEFORGE_SURROGATE
  };
  return table;
}

std::string known_surrogates() {
  std::string list;
  for (const SurrogateDescription& surrogate : surrogates())
    list += (list.empty() ? "" : ", ") + std::string(surrogate.name);
  return list;
}

void check_argument(const char* op, std::string_view surrogate, const Argument& argument, double value) {
  const bool in_range = argument.lowest_is_legal ? value >= argument.lowest : value > argument.lowest;
  const bool is_legal =
      std::isfinite(value) && in_range && (!argument.is_whole || (value == std::floor(value) && value <= 1e6));
  TORCH_CHECK_VALUE(is_legal, op, ": surrogate ", surrogate, ": ", argument.name, " must be a ",
                    argument.is_whole ? "whole" : "finite", " number ",
                    argument.lowest_is_legal ? "of at least " : "above ", argument.lowest, ", but is ", value);
}

}  // namespace

const NeuronDescription& describe(NeuronKind kind) {
  static const NeuronDescription table[] = {
      {"integrate_and_fire", one_state, if_params},
      {"lif", one_state, lif_params},
      {"plif", one_state, plif_params},
      {"qif", one_state, qif_params},
      {"eif", one_state, eif_params},
      {"izhikevich", two_states, izhikevich_params},
  };
  return table[static_cast<int>(kind)];
}

void check_positive(const char* op, const char* name, double value) {
  TORCH_CHECK_VALUE(std::isfinite(value) && value > 0, op, ": ", name, " must be finite and above 0, but is ", value);
}

Surrogate parse_surrogate(const char* op, std::string_view name, c10::ArrayRef<double> args) {
  const std::vector<SurrogateDescription>& table = surrogates();
  for (std::size_t kind = 0; kind < table.size(); ++kind) {
    const SurrogateDescription& known = table[kind];
    if (known.name != name) continue;
    TORCH_CHECK_VALUE(args.empty() || args.size() == known.args.size(), op, ": surrogate ", name, " takes ",
                      known.args.size(), known.args.size() == 1 ? " number" : " numbers",
                      ", or none for its defaults, but surrogate_args has ", args.size());
    Surrogate result{static_cast<SurrogateKind>(kind), {}};
    for (std::size_t i = 0; i < known.args.size(); ++i) {
      result.args[i] = args.empty() ? known.args[i].default_value : args[i];
      check_argument(op, name, known.args[i], result.args[i]);
    }
    return result;
  }
  TORCH_CHECK_VALUE(false, op, ": unknown surrogate \"", name, "\"; known are ", known_surrogates());
}

std::string_view name_of(SurrogateKind kind) { return surrogates()[static_cast<std::size_t>(kind)].name; }

const OptionalTensorList& no_tensors(std::size_t n_params) {
  static const std::vector<OptionalTensorList> lists = [] {
    std::vector<OptionalTensorList> made(max_params + 1);
    for (std::size_t n = 0; n < made.size(); ++n) made[n].resize(n);
    return made;
  }();
  return lists.at(n_params);
}

}  // namespace spikeforge::ops
