#include "csrc/cpu/multistep/traced_program.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/dependence.h"

#include <algorithm>

namespace spikeforge::cpu {
namespace {

using Places = std::vector<std::size_t>;

void append(Places& places, std::size_t first, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) places.push_back(first + i);
}

Places range(std::size_t first, std::size_t count) {
  Places places;
  append(places, first, count);
  return places;
}

// The maximum bytes of a step's rows, and of the states of a segment. LIF, float32, T=16, N=2^17 on one Zen 4 core for
// 16, 32, 64, 128 and 256 KiB of rows: 2.2, 1.9, 1.2, 1.3, 2.0 ms.
constexpr std::int64_t first_level = 64 << 10;
constexpr std::int64_t second_level = 512 << 10;
// Each instruction has a cost per row, which dominates for shorter rows; longer rows gain nothing.
constexpr std::int64_t shortest_row = 256;
constexpr std::int64_t longest_row = 2048;
constexpr std::int64_t granule = 64;

std::int64_t live_rows(const Tape& tape) { return tape.arguments + tape.results + tape.temporaries; }

std::int64_t tile_of(std::int64_t rows, DType type) {
  const std::int64_t fits = first_level / (rows * static_cast<std::int64_t>(size_of(compute_type(type))));
  return std::clamp(fits / granule * granule, shortest_row, longest_row);
}

}  // namespace

TracedProgram::TracedProgram(const TracedCell& cell) : TracedProgram(cell.stages) {
  for (const graph::State& state : cell.graph.signature().states) initial.push_back(state.initial);
}

TracedProgram::TracedProgram(const autodiff::Stages& stages)
    : inputs(stages.inputs),
      states(stages.states),
      params(stages.params),
      outputs(stages.outputs),
      hoisted(stages.hoisted),
      factors(stages.factors),
      prologue(tape_of(stages.prologue)),
      step(tape_of(stages.step)),
      advance(tape_of(stages.step, range(stages.outputs, stages.states))),
      epilogue(tape_of(stages.epilogue)) {
  const graph::Dependence depends(stages.prologue);
  const std::vector<bool> drawn = graph::drawn(stages.prologue);
  for (const graph::Id id : stages.prologue.results()) {
    hoisted_drawn_.push_back(drawn[id]);
    std::vector<std::size_t>& from = hoisted_from_.emplace_back();
    for (std::size_t j = 0; j < params; ++j)
      if (depends.on(id, j)) from.push_back(j);
  }
  const std::size_t first_factor = inputs + states;
  const graph::MultiplyAdds multiply_adds(stages.backward);
  for (std::size_t k = 0; k < factors; ++k)
    if (!autodiff::is_zero(stages.backward, first_factor + k)) summed.push_back(k);
  for (const bool with_inputs : {false, true})
    for (const bool with_params : {false, true}) {
      Places wanted = with_inputs ? range(0, inputs) : Places();
      append(wanted, inputs, states);
      if (with_params)
        for (const std::size_t k : summed) wanted.push_back(first_factor + k);
      backward_[with_inputs][with_params] = tape_of(stages.backward, wanted, multiply_adds);
    }
}

bool TracedProgram::hoisted_varies(std::size_t k, std::span<const ParamView> given) const {
  return hoisted_drawn_[k] ||
         std::ranges::any_of(hoisted_from_[k], [&](std::size_t j) { return given[j].data != nullptr; });
}

std::int64_t TracedProgram::forward_tile(DType type) const { return tile_of(live_rows(step), type); }

std::int64_t TracedProgram::backward_tile(DType type, std::int64_t segment) const {
  const std::int64_t kept = segment * static_cast<std::int64_t>(states);
  const std::int64_t fits = second_level / (kept + 1) / static_cast<std::int64_t>(size_of(compute_type(type)));
  return std::min(tile_of(live_rows(backward_[1][1]), type), std::max(shortest_row, fits / granule * granule));
}

const TracedProgram& program_of(const TracedCell& cell) {
  return cell.cpu_program.get<TracedProgram>([&] { return TracedProgram(cell); });
}

}  // namespace spikeforge::cpu
