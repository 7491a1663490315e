#include <spikeforge/ops/lava/arguments.h>
#include <spikeforge/ops/lava/connections.h>
#include <spikeforge/ops/neuron/checks.h>

#include <c10/util/Exception.h>

#include <array>

namespace spikeforge::ops {
namespace {

// The widths of the hardware's fields; besides, Lava's own: du = -1 is no decay at all, and a negative exponent shifts
// to the right, by as much as an int32 has.
constexpr LoihiParam du{"du", -1, 4095}, dv{"dv", 0, 4095};
constexpr LoihiParam bias_mant{"bias_mant", -4096, 4095}, bias_exp{"bias_exp", -31, 7};
constexpr LoihiParam vth{"vth", 0, 131071}, vth_hi{"vth_hi", -131071, 131071}, vth_lo{"vth_lo", -131071, 131071};
constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
constexpr LoihiParam reset_interval{"reset_interval", 1, most}, reset_offset{"reset_offset", -most, most};
constexpr LoihiParam refractory_period{"refractory_period", 0, most};
// Of u and v.
constexpr std::int64_t most_state = std::int64_t{1} << 23;

constexpr LoihiParam lif_params[] = {du, dv, bias_mant, bias_exp, vth};
constexpr LoihiParam lif_reset_params[] = {du, dv, bias_mant, bias_exp, vth, reset_interval, reset_offset};
constexpr LoihiParam lif_refractory_params[] = {du, dv, bias_mant, bias_exp, vth, refractory_period};
constexpr LoihiParam ternary_params[] = {du, dv, bias_mant, bias_exp, vth_hi, vth_lo};
constexpr LoihiParam ternary_reset_params[] = {du,     dv,     bias_mant,      bias_exp,
                                               vth_hi, vth_lo, reset_interval, reset_offset};
constexpr LoihiParam ternary_refractory_params[] = {du, dv, bias_mant, bias_exp, vth_hi, vth_lo, refractory_period};

constexpr const char* u_v[] = {"u", "v"};
constexpr const char* u_v_phase[] = {"u", "v", "phase"};
constexpr const char* u_v_wait[] = {"u", "v", "wait"};

constexpr std::array<LoihiDescription, 3> lifs = {{{"loihi_lif", u_v, lif_params},
                                                   {"loihi_lif_reset", u_v_phase, lif_reset_params},
                                                   {"loihi_lif_refractory", u_v_wait, lif_refractory_params}}};
constexpr std::array<LoihiDescription, 3> ternary_lifs = {
    {{"loihi_ternary_lif", u_v, ternary_params},
     {"loihi_ternary_lif_reset", u_v_phase, ternary_reset_params},
     {"loihi_ternary_lif_refractory", u_v_wait, ternary_refractory_params}}};

bool is_given(const std::optional<at::Tensor>& t) { return t.has_value() && t->defined(); }

void check_arguments(const LoihiArguments& args) {
  const auto& [op, states, params] = describe(args.ternary, args.form);
  const at::Tensor& x = args.x;
  TORCH_CHECK_TYPE(x.scalar_type() == at::kInt, op, ": x must be int32, but is ", x.scalar_type(),
                   "; pass x.to(torch.int32)");
  TORCH_CHECK_TYPE(x.layout() == c10::kStrided, op, ": x must be a dense tensor, but its layout is ", x.layout());
  const Leader leader{op, "x", x};
  check_steps(leader);
  TORCH_CHECK_VALUE(args.states.size() == states.size(), op, ": states must have ", states.size(), " entries, but has ",
                    args.states.size());
  for (std::size_t s = 0; s < states.size(); ++s)
    if (const std::optional<at::Tensor> state = args.states.get(s); is_given(state))
      check_state(leader, states[s], *state);
  TORCH_CHECK_VALUE(args.params.size() == params.size() && args.numbers.size() == params.size(), op,
                    ": params and numbers must have ", params.size(), " entries, but have ", args.params.size(),
                    " and ", args.numbers.size());
  for (std::size_t j = 0; j < params.size(); ++j) {
    const auto& [name, least, greatest] = params[j];
    if (const std::optional<at::Tensor> param = args.params.get(j); is_given(param)) {
      check_param(leader, name, *param);
    } else {
      const std::int64_t number = args.numbers[j];
      TORCH_CHECK_VALUE(least <= number && number <= greatest, op, ": ", name, " must lie in [", least, ", ", greatest,
                        "], but is ", number);
    }
  }
  if (args.ternary && !is_given(args.params.get(Loihi<true, LoihiForm::plain>::vth)) &&
      !is_given(args.params.get(Loihi<true, LoihiForm::plain>::vth_lo))) {
    const std::int64_t high = args.numbers[4], low = args.numbers[5];
    TORCH_CHECK_VALUE(low <= high, op, ": vth_lo must not be above vth_hi, but is ", low, ", and vth_hi is ", high);
  }
}

}  // namespace

const LoihiDescription& describe(bool ternary, LoihiForm form) {
  return (ternary ? ternary_lifs : lifs)[static_cast<std::size_t>(form)];
}

const char* name_of(LoihiForm form) {
  return form == LoihiForm::plain ? "plain" : form == LoihiForm::reset ? "reset" : "refractory";
}

LoihiForm parse_form(std::string_view name) {
  for (const LoihiForm form : {LoihiForm::plain, LoihiForm::reset, LoihiForm::refractory})
    if (name == name_of(form)) return form;
  TORCH_CHECK_VALUE(false, "loihi_forward: form must be plain, reset or refractory, but is ", name);
}

void check_values(const LoihiArguments& args) {
  const auto& [op, states, params] = describe(args.ternary, args.form);
  for (std::size_t s = 0; s < states.size(); ++s)
    if (const std::optional<at::Tensor> state = args.states.get(s); is_given(state)) {
      const bool counts = s == 2;
      check_elements(op, states[s], *state, counts ? 0 : -most_state, counts ? most : most_state);
    }
  for (std::size_t j = 0; j < params.size(); ++j)
    if (const std::optional<at::Tensor> param = args.params.get(j); is_given(param))
      check_elements(op, params[j].name, *param, params[j].least, params[j].most);
}

template <class Int>
LoihiPreparation<Int> prepare(const LoihiArguments& args) {
  check_arguments(args);
  const at::Tensor x = with_dense_steps<Int>(args.x);
  return {.x = x, .layout = layout_of<Int>(x)};
}

template <class Int>
std::vector<at::Tensor> allocate(const LoihiArguments& args, const LoihiPreparation<Int>& prepared) {
  const at::TensorOptions options = prepared.x.options();
  std::vector<at::Tensor> results{prepared.layout.empty_sequence(options)};
  for (int s = 0; s < loihi_states(args.form); ++s)
    results.push_back(args.store_states ? prepared.layout.empty_sequence(options)
                                        : prepared.layout.empty_step(options));
  return results;
}

LoihiLaunch describe_launch(const LoihiArguments& args, const LoihiPreparation<std::int64_t>& prepared,
                            const std::vector<at::Tensor>& results, Copies& copies) {
  const PlainLayout& layout = prepared.layout;
  LoihiLaunch launch;
  launch.ternary = args.ternary;
  launch.form = args.form;
  launch.steps = layout.steps;
  launch.neurons = layout.neurons;
  launch.store_states = args.store_states;
  launch.x = view_sequence(prepared.x, layout, copies);
  launch.spikes = results[0].mutable_data_ptr();
  for (std::size_t s = 0; s < args.states.size(); ++s) {
    launch.states[s] = results[1 + s].mutable_data_ptr();
    const std::optional<at::Tensor> state = args.states.get(s);
    if (is_given(state)) launch.initial[s] = {.data = data_of_step(*state, layout, copies), .type = DType::i32};
  }
  for (std::size_t j = 0; j < args.params.size(); ++j) {
    const std::optional<at::Tensor> param = args.params.get(j);
    if (is_given(param)) {
      launch.params[j] = view_param(*param, layout, copies);
    } else {
      launch.params[j].number = static_cast<double>(args.numbers[j]);
    }
  }
  return launch;
}

template struct LoihiPreparation<std::int64_t>;
template struct LoihiPreparation<c10::SymInt>;
template LoihiPreparation<std::int64_t> prepare(const LoihiArguments&);
template LoihiPreparation<c10::SymInt> prepare(const LoihiArguments&);
template std::vector<at::Tensor> allocate(const LoihiArguments&, const LoihiPreparation<std::int64_t>&);
template std::vector<at::Tensor> allocate(const LoihiArguments&, const LoihiPreparation<c10::SymInt>&);

}  // namespace spikeforge::ops
