#include <spikeforge/runtime/loihi_spec.h>

#include <fmt/format.h>

#include <span>

namespace spikeforge::runtime {
namespace {

const char* name_of(LoihiForm form) {
  switch (form) {
    case LoihiForm::plain:
      return "plain";
    case LoihiForm::reset:
      return "reset";
    case LoihiForm::refractory:
      return "refractory";
  }
  return "";
}

}  // namespace

LoihiSpec loihi_spec(const LoihiLaunch& launch, const Schedule& schedule) {
  LoihiSpec spec{.loop = {.direction = Direction::forward,
                          .type = launch.type,
                          .schedule = schedule,
                          .store_states = launch.store_states},
                 .ternary = launch.ternary,
                 .form = launch.form};
  for (int s = 0; s < launch.n_states(); ++s)
    if (launch.initial[s].data != nullptr) spec.states[s].operand = operand(launch.initial[s].type);
  for (int j = 0; j < launch.n_params(); ++j)
    if (launch.params[j].data != nullptr)
      spec.params[j] = {.operand = operand(launch.params[j].type),
                        .shared = shared_by_warps(launch.params[j], schedule)};
  return spec;
}

KernelSource print_source(const LoihiSpec& spec) {
  const char* form = name_of(spec.form);
  const CellText cell{.name = fmt::format("loihi_{}lif_{}", spec.ternary ? "ternary_" : "", form),
                      .text = "#include <spikeforge/lava/loihi.h>\n",
                      .types = {"Options = NoOptions", "Surrogate = NoSurrogate<Compute>",
                                fmt::format("Cell = Loihi<{}, LoihiForm::{}>", spec.ternary, form)}};
  const std::array<Place, 1> one{};
  const auto states = std::span(spec.states).first(static_cast<std::size_t>(loihi_states(spec.form)));
  const auto params = std::span(spec.params).first(static_cast<std::size_t>(loihi_params(spec.ternary, spec.form)));
  return print_kernel(spec.loop, cell, {.inputs = one, .states = states, .params = params, .outputs = one});
}

}  // namespace spikeforge::runtime
