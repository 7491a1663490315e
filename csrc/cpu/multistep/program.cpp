#include "csrc/cpu/multistep/program.h"
#include "csrc/cpu/multistep/compiled_tapes.h"
#include "csrc/cpu/multistep/traced_program.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <algorithm>

namespace spikeforge::cpu {
namespace {

// Neurons a tile: long enough that rows stream from memory, short enough that the rows of a segment, its states and its
// inputs, stay in the second-level cache (1 MiB here). LIF, float32, T=16, N=2^20 on one Zen 4 core, in copies of as
// many bytes: forward 1.07, 1.07 and 1.27 for tiles of 2048, 4096, 8192; backward 1.61, 1.62 and 1.97 for 1024, 2048,
// 4096.
constexpr std::int64_t forward_tile = 4096;
constexpr std::int64_t backward_tile = 2048;
// States and cells of a tile, 40 KiB, stay near the processor.
constexpr std::int64_t loihi_tile = 1024;

Loop loop_of(const Launch& launch) {
  const Cell& cell = *launch.cell;
  switch (cell.maker) {
    case Cell::Maker::predefined: return loops().predefined(static_cast<const PredefinedCell&>(cell).kind, launch.type);
    case Cell::Maker::traced: return loops().traced(launch.type);
    case Cell::Maker::loihi: {
      const auto& loihi = static_cast<const LoihiCell&>(cell);
      return loops().loihi(loihi.ternary, loihi.form);
    }
  }
  return {};
}

const TracedCell* traced(const Launch& launch) {
  return launch.cell->maker == Cell::Maker::traced ? static_cast<const TracedCell*>(launch.cell) : nullptr;
}

}  // namespace

Program program_of(const ForwardLaunch& launch) {
  Program program{loop_of(launch), {}, launch.cell->maker == Cell::Maker::loihi ? loihi_tile : forward_tile};
  if (const TracedCell* const cell = traced(launch)) {
    program.context = {&program_of(*cell), compiled_forward(*cell, launch.type)};
    program.largest_tile = program.context.program->forward_tile(launch.type);
  }
  return program;
}

Program program_of(const BackwardLaunch& launch) {
  Program program{loop_of(launch), {}, backward_tile};
  if (const TracedCell* const cell = traced(launch)) {
    program.context = {&program_of(*cell),
                       compiled_backward(*cell, launch.type, launch.any_grad_input, launch.any_grad_param)};
    const std::int64_t segment = std::min(launch.steps, launch.checkpoint_length);
    program.largest_tile = program.context.program->backward_tile(launch.type, segment);
  }
  return program;
}

}  // namespace spikeforge::cpu
