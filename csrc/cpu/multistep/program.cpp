#include "csrc/cpu/multistep/program.h"
#include "csrc/base/once_map.h"
#include "csrc/base/published_map.h"
#include "csrc/cpu/host_compiler.h"
#include "csrc/cpu/multistep/print_tapes.h"
#include "csrc/cpu/multistep/traced_program.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <mutex>
#include <utility>

namespace spikeforge::cpu {
namespace {

// Neurons per tile: enough to stream rows from memory, and few enough that the states and inputs of a segment stay in
// the second-level cache (1 MiB here). LIF, float32, T=16, N=2^20 on one Zen 4 core, in times of a copy of the same
// number of bytes: forward 1.07, 1.07 and 1.27 for tiles of 2048, 4096, 8192; backward 1.61, 1.62 and 1.97 for 1024,
// 2048, 4096.
constexpr std::int64_t forward_tile = 4096;
constexpr std::int64_t backward_tile = 2048;
// The states and cells of a tile, 40 KiB, stay in a cache near the processor.
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

// ---- compiled tapes ----

// The tapes of a cell that are compiled together.
struct Unit {
  DType type{};
  bool is_backward = false, with_inputs = false, with_params = false;

  bool operator==(const Unit&) const = default;
};
struct HashOfUnit {
  std::size_t operator()(const Unit& unit) const {
    return static_cast<std::size_t>(unit.type) * 8 + (unit.is_backward ? 4 : 0) + (unit.with_inputs ? 2 : 0) +
           unit.with_params;
  }
};

struct Compiled {
  SharedObject object;
  TapeFunctions functions;
};

// The compiled tapes of a cell. The first caller compiles; hot calls take no lock.
struct CompiledTapes {
  OnceMap<Unit, Compiled, HashOfUnit> made;
  PublishedMap<Unit, const TapeFunctions, HashOfUnit> published;
};

Compiled compile(const HostCompiler& compiler, const TracedCell& cell, const Unit& unit) {
  const TracedProgram& program = program_of(cell);
  std::vector<NamedTape> tapes;
  if (unit.is_backward) {
    tapes.push_back({"spikeforge_advance", &program.advance});
    tapes.push_back({"spikeforge_backward", &program.backward(unit.with_inputs, unit.with_params)});
  } else {
    tapes.push_back({"spikeforge_step", &program.step});
  }
  const std::string name = cell.name + (unit.is_backward ? "_backward" : "_forward");
  SharedObject object = compiler.load(name, print_tapes(tapes, unit.type));
  const auto function = [&](const char* symbol) { return reinterpret_cast<TapeFunction>(object.find(symbol)); };
  const TapeFunctions functions{function("spikeforge_step"), function("spikeforge_advance"),
                                function("spikeforge_backward")};
  return {std::move(object), functions};
}

Compiled compile_or_warn(const HostCompiler& compiler, const TracedCell& cell, const Unit& unit) {
  try {
    return compile(compiler, cell, unit);
  } catch (const std::exception& e) {
    static std::once_flag once;
    std::call_once(once, [&] {
      std::fprintf(stderr, "spikeforge: warning: neuron %s is interpreted, not compiled: %s\n", cell.name.c_str(),
                   e.what());
    });
    return {};
  }
}

// Tapes compiled by the machine's C++ compiler. The interpreter runs each of them as one instruction. They are compiled
// at the first call for a cell and type, which waits for the compiler. The functions are valid as long as the cell
// exists. All are null if there is no compiler (host_compiler.h), or if it failed, which causes one warning: the
// interpreter then runs the instructions.
TapeFunctions functions_of(const TracedCell& cell, Unit unit) {
  const HostCompiler* const compiler = HostCompiler::get();
  if (compiler == nullptr) return {};
  if (unit.type != DType::f64) unit.type = DType::f32;  // half types are converted before and after the tape
  auto& tapes = cell.compiled_tapes.get<CompiledTapes>([] { return CompiledTapes(); });
  if (const TapeFunctions* const functions = tapes.published.find(unit)) return *functions;
  const auto made = tapes.made.get(unit, [&] { return compile_or_warn(*compiler, cell, unit); });
  return tapes.published.insert(unit, made.value->functions);
}

}  // namespace

Program program_of(const ForwardLaunch& launch) {
  Program program{loop_of(launch), {}, launch.cell->maker == Cell::Maker::loihi ? loihi_tile : forward_tile};
  if (const TracedCell* const cell = traced(launch)) {
    program.context = {&program_of(*cell), functions_of(*cell, {launch.type})};
    program.largest_tile = program.context.program->forward_tile(launch.type);
  }
  return program;
}

Program program_of(const BackwardLaunch& launch) {
  Program program{loop_of(launch), {}, backward_tile};
  if (const TracedCell* const cell = traced(launch)) {
    program.context = {&program_of(*cell),
                       functions_of(*cell, {launch.type, true, launch.any_grad_input, launch.any_grad_param})};
    const std::int64_t segment = std::min(launch.steps, launch.checkpoint_length);
    program.largest_tile = program.context.program->backward_tile(launch.type, segment);
  }
  return program;
}

}  // namespace spikeforge::cpu
