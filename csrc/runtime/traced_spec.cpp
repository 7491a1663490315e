#include <spikeforge/codegen/cell_printer.h>
#include <spikeforge/runtime/traced_spec.h>

#include <span>
#include <type_traits>

namespace spikeforge::runtime {
namespace {

TracedSpec common_spec(Direction direction, const TracedLaunch& launch, const Schedule& schedule) {
  TracedSpec spec{
      .cell = launch.cell,
      .loop = {.direction = direction, .type = launch.type, .schedule = schedule, .store_states = launch.store_states},
      .places = {}};
  const autodiff::Stages& stages = launch.cell->stages;
  spec.places.resize(stages.inputs + stages.states + stages.params + stages.outputs);
  return spec;
}

// The same for the places of a spec as for those of a const one.
template <class Spec>
struct PlacesOf {
  explicit PlacesOf(Spec& spec) {
    const autodiff::Stages& stages = spec.cell->stages;
    std::span all(spec.places);
    const auto take = [&all](std::size_t count) {
      const auto first = all.first(count);
      all = all.subspan(count);
      return first;
    };
    inputs = take(stages.inputs);
    states = take(stages.states);
    params = take(stages.params);
    outputs = take(stages.outputs);
  }

  std::span<std::conditional_t<std::is_const_v<Spec>, const Place, Place>> inputs, states, params, outputs;
};

void describe_operands(const TracedLaunch& launch, const PlacesOf<TracedSpec>& places, const Schedule& schedule) {
  for (std::size_t s = 0; s < launch.initial.size(); ++s)
    if (launch.initial[s].data != nullptr) places.states[s].operand = operand(launch.initial[s].type);
  for (std::size_t j = 0; j < launch.params.size(); ++j) {
    const ParamView& param = launch.params[j];
    if (param.data == nullptr) continue;
    places.params[j].operand = operand(param.type);
    places.params[j].shared = shared_by_warps(param, schedule);
  }
}

}  // namespace

std::size_t HashOfSpecBytes<TracedSpec>::operator()(const TracedSpec& spec) const {
  static_assert(std::has_unique_object_representations_v<LoopSpec> && std::has_unique_object_representations_v<Place>,
                "equal specs must have equal bytes: no padding");
  std::size_t hash = spec.cell->hash.low;
  hash = hash * 31 + hash64(&spec.loop, sizeof spec.loop);
  return hash * 31 + hash64(spec.places.data(), spec.places.size() * sizeof(Place));
}

TracedSpec traced_spec(const TracedForwardLaunch& launch, const Schedule& schedule) {
  TracedSpec spec = common_spec(Direction::forward, launch, schedule);
  spec.loop.save = launch.checkpoints != nullptr;
  if (!spec.loop.save) spec.loop.schedule.checkpoint = 1;
  describe_operands(launch, PlacesOf(spec), schedule);
  return spec;
}

TracedSpec traced_spec(const TracedBackwardLaunch& launch, const Schedule& schedule) {
  TracedSpec spec = common_spec(Direction::backward, launch, schedule);
  const PlacesOf places(spec);
  describe_operands(launch, places, schedule);
  for (std::size_t i = 0; i < places.inputs.size(); ++i) places.inputs[i].wanted = launch.grad_inputs[i] != nullptr;
  for (std::size_t i = 0; i < places.outputs.size(); ++i) places.outputs[i].grad = kind_of(launch.grad_outputs[i]);
  for (std::size_t s = 0; s < places.states.size(); ++s) {
    places.states[s].grad = kind_of(launch.grad_states[s]);
    places.states[s].wanted = launch.grad_initial[s] != nullptr;
  }
  for (std::size_t j = 0; j < places.params.size(); ++j) {
    places.params[j].wanted = launch.grad_params[j] != nullptr;
    if (places.params[j].wanted && !launch.sums_of_warps) places.params[j].shared = false;
  }
  return spec;
}

KernelSource print_source(const TracedSpec& spec) {
  const PlacesOf places(spec);
  const CellText cell{.name = spec.cell->cell.name(),
                      .text = codegen::print_cell(spec.cell->cell, spec.cell->stages),
                      .types = {"Options = NoOptions", "Surrogate = NoSurrogate<Compute>", "Cell = Neuron<Compute>"}};
  return print_kernel(spec.loop, cell, {places.inputs, places.states, places.params, places.outputs});
}

}  // namespace spikeforge::runtime
