#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/neuron/cells.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>

namespace spikeforge {
namespace {

struct Row {
  const char* name;
  const char* type;
  const char* header;
  std::vector<std::string> states;
  std::vector<CellParam> params;
  int kept_values;
};

const Row& row_of(NeuronKind kind) {
  static const std::vector<Row> rows = {
#define SPIKEFORGE_STATE(name) #name,
#define SPIKEFORGE_TENSOR(name) CellParam{#name, 0, Legal::any},
#define SPIKEFORGE_PARAM(name, default_value, legal) CellParam{#name, default_value, Legal::legal},
#define SPIKEFORGE_V_RESET(default_value) CellParam{"v_reset", default_value, Legal::any},
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) \
  {#name,                                                                \
   #Struct,                                                              \
   header,                                                               \
   {SPIKEFORGE_EACH(SPIKEFORGE_STATE, states)},                          \
   {SPIKEFORGE_EACH(SPIKEFORGE_TENSOR, tensors) params},                 \
   Struct<float, CellForm>::kept_values},
#include "csrc/neuron/neurons.def"
#undef SPIKEFORGE_STATE
#undef SPIKEFORGE_TENSOR
  };
  return rows[static_cast<std::size_t>(kind)];
}

// A row of the table has the parameters of its struct, in the order of enum Param, and as many states.
constexpr bool counts_up(std::initializer_list<int> params, int n_params) {
  int next = 0;
  for (const int param : params)
    if (param != next++) return false;
  return next == n_params;
}

#define SPIKEFORGE_PLACE(name) static_cast<int>(Neuron::name),
#define SPIKEFORGE_PARAM(name, default_value, legal) static_cast<int>(Neuron::name),
#define SPIKEFORGE_V_RESET(default_value) static_cast<int>(Neuron::v_reset),
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)                                  \
  struct Check##Struct {                                                                                  \
    using Neuron = Struct<float, CellForm>;                                                               \
    static_assert(counts_up({SPIKEFORGE_EACH(SPIKEFORGE_PLACE, tensors) params}, Neuron::n_params),       \
                  #name ": neurons.def and enum Param");                                                  \
    static_assert(Neuron::n_states == state_count(NeuronKind::name), #name ": neurons.def and n_states"); \
  };
#include "csrc/neuron/neurons.def"
#undef SPIKEFORGE_PLACE

}  // namespace

PredefinedCell::PredefinedCell(NeuronKind kind) : Cell(Maker::predefined), kind(kind) {
  const Row& row = row_of(kind);
  name = forward_op = row.name;
  backward_op = name + "_backward";
  inputs = {"x"};
  states = row.states;
  outputs = {"spikes"};
  params = row.params;
  kept_values = row.kept_values;
}

CellText PredefinedCell::device_text(const CellForm& form) const {
  const Row& row = row_of(kind);
  return {
      .name = name,
      .text = fmt::format("#include <spikeforge/neuron/{}>\n", row.header),
      .types = {fmt::format("Options = StaticOptions<{}, {}, {}, {}>", form.hard_reset, form.detach_reset, form.spiking,
                            form.decay_input),
                fmt::format("Neuron = {}<Compute, Options>", row.type),
                fmt::format("Surrogate = {}<Compute>", form.with_surrogate ? struct_of(form.surrogate) : "NoSurrogate"),
                "Cell = SpikingCell<Compute, Neuron, Surrogate, Options>"}};
}

CellForm PredefinedCell::canonical(CellForm form) const {
  if (!has_decay_input(kind)) form.decay_input = true;
  return form;
}

const PredefinedCell& predefined_cell(NeuronKind kind) {
  // Never destroyed: operators may run in the destructors of a program.
  static const auto& cells = *[] {
    auto* const made = new std::vector<std::unique_ptr<PredefinedCell>>;
    for (const NeuronKind each : all_neurons) {
      made->push_back(std::make_unique<PredefinedCell>(each));
      enroll(*made->back());
    }
    return made;
  }();
  return *cells[static_cast<std::size_t>(kind)];
}

}  // namespace spikeforge
