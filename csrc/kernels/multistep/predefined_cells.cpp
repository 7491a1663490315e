#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/neuron/cells.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>

namespace spikeforge {
namespace {

template <NeuronKind kind> using Struct = typename NeuronStruct<kind>::template type<float, CellForm>;

// True if a row of the table has the parameters of its struct, in the order of enum Param, and the same number of
// states.
template <NeuronKind kind> constexpr bool fits_its_struct() {
  int next = 0;
  for (const int place : NeuronStruct<kind>::template places<Struct<kind>>)
    if (place != next++) return false;
  return next == Struct<kind>::n_params && Struct<kind>::n_states == state_count(kind);
}

}  // namespace

PredefinedCell::PredefinedCell(NeuronKind kind) : Cell(Maker::predefined), kind(kind) {
  const NeuronRow& row = neuron_row(kind);
  name = forward_op = row.name;
  backward_op = name + "_backward";
  inputs = {"x"};
  states.assign(row.states.begin(), row.states.end());
  outputs = {"spikes"};
  for (const char* const tensor : row.tensors) params.push_back({.name = tensor, .legal = Legal::any});
  for (const NeuronParam& param : row.params)
    if (param.role != NeuronParam::decay_input) params.push_back({param.name, param.default_value, param.legal});
  kept_values = with_kind(kind, []<NeuronKind each>() {
    static_assert(fits_its_struct<each>(), "neurons.def and the struct differ");
    return int(Struct<each>::kept_values);
  });
}

CellText PredefinedCell::device_text(const CellForm& form) const {
  const NeuronRow& row = neuron_row(kind);
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
