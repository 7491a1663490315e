#include "csrc/kernels/multistep/loihi_cells.h"

#include <fmt/format.h>

#include <limits>
#include <memory>

namespace spikeforge {
namespace {

constexpr LoihiForm all_forms[] = {LoihiForm::plain, LoihiForm::reset, LoihiForm::refractory};
constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();

// A threshold below all voltages: the neuron fires at every step.
constexpr std::int64_t always_reached = -(std::int64_t{1} << 25);

// Returns the parameters, with the widths of the fields of the hardware, and additional values of Lava: du = -1 is no
// decay, dv = 4096 clears v, a threshold of 2^17 is never reached, and a negative exponent shifts to the right, by at
// most the width of an int32.
std::vector<CellParam> params_of(bool ternary, LoihiForm form) {
  const auto between = [](const char* name, double otherwise, std::int64_t low, std::int64_t high,
                          std::int64_t poison = 0) {
    return CellParam{name, otherwise, Legal::between, low, high, poison};
  };
  std::vector<CellParam> params = {between("du", 0, -1, 4095), between("dv", 0, 0, 4096),
                                   between("bias_mant", 0, -4096, 4095), between("bias_exp", 0, -31, 7)};
  if (ternary) {
    params.push_back(between("vth_hi", 10, -131072, 131072, always_reached));
    params.push_back(between("vth_lo", -10, -131072, 131072, always_reached));
  } else {
    params.push_back(between("vth", 10, 0, 131072, always_reached));
  }
  if (form == LoihiForm::reset) {
    params.push_back(between("reset_interval", 1, 1, most, 1));
    params.push_back(between("reset_offset", 0, -most, most));
  }
  if (form == LoihiForm::refractory) params.push_back(between("refractory_period", 1, 0, most));
  return params;
}

}  // namespace

LoihiCell::LoihiCell(bool ternary, LoihiForm form) : Cell(Maker::loihi), ternary(ternary), form(form) {
  name = ternary ? "loihi_ternary_lif" : "loihi_lif";
  if (form != LoihiForm::plain) name += std::string("_") + name_of(form);
  forward_op = name;
  inputs = {"x"};
  states = {"u", "v"};
  if (form == LoihiForm::reset) states.emplace_back("phase");
  if (form == LoihiForm::refractory) states.emplace_back("wait");
  outputs = {"spikes"};
  params = params_of(ternary, form);
  is_integer = true;
  forward_cost = 25;
}

CellText LoihiCell::device_text(const CellForm&) const {
  return {.name = fmt::format("loihi_{}lif_{}", ternary ? "ternary_" : "", name_of(form)),
          .text = "#include <spikeforge/neuron/loihi.h>\n",
          .types = {"Options = NoOptions", "Surrogate = NoSurrogate<Compute>",
                    fmt::format("Cell = Loihi<{}, LoihiForm::{}>", ternary, name_of(form))}};
}

const LoihiCell& loihi_cell(bool ternary, LoihiForm form) {
  // Never destroyed, like the other cells.
  static const auto& cells = *[] {
    auto* const made = new std::vector<std::unique_ptr<LoihiCell>>;
    for (const bool each_ternary : {false, true})
      for (const LoihiForm each : all_forms) {
        made->push_back(std::make_unique<LoihiCell>(each_ternary, each));
        enroll(*made->back());
      }
    return made;
  }();
  return *cells[(ternary ? std::size(all_forms) : 0) + static_cast<std::size_t>(form)];
}

const char* name_of(LoihiForm form) {
  switch (form) {
    case LoihiForm::plain: return "plain";
    case LoihiForm::reset: return "reset";
    case LoihiForm::refractory: return "refractory";
  }
  return "";
}

}  // namespace spikeforge
