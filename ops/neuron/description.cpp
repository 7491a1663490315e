#include <spikeforge/graph/errors.h>
#include <spikeforge/graph/surrogate.h>
#include <spikeforge/ops/neuron/arguments.h>

#include <c10/util/Exception.h>

#include <cmath>
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
  try {
    const graph::Surrogate made = graph::make_surrogate(name, {args.data(), args.size()});
    TORCH_CHECK_VALUE(made.kind.has_value(), op, ": surrogate none is for neurons of one's own");
    return {*made.kind, made.args};
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, op, ": ", error.what(), " (arguments surrogate and surrogate_args)");
  }
}

std::string_view name_of(SurrogateKind kind) { return graph::describe(kind).name; }

const OptionalTensorList& no_tensors(std::size_t n_params) {
  static const std::vector<OptionalTensorList> lists = [] {
    std::vector<OptionalTensorList> made(max_params + 1);
    for (std::size_t n = 0; n < made.size(); ++n) made[n].resize(n);
    return made;
  }();
  return lists.at(n_params);
}

}  // namespace spikeforge::ops
