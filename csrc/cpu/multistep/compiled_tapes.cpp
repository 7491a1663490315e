#include "csrc/cpu/multistep/compiled_tapes.h"
#include "csrc/base/once_map.h"
#include "csrc/base/published_map.h"
#include "csrc/cpu/host_compiler.h"
#include "csrc/cpu/multistep/print_tapes.h"
#include "csrc/cpu/multistep/traced_program.h"

#include <cstdio>
#include <exception>
#include <mutex>
#include <utility>

namespace spikeforge::cpu {
namespace {

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

TapeFunctions functions_of(const TracedCell& cell, Unit unit) {
  const HostCompiler* const compiler = HostCompiler::get();
  if (compiler == nullptr) return {};
  if (unit.type != DType::f64) unit.type = DType::f32;  // half types are converted before and after
  auto& tapes = cell.compiled_tapes.get<CompiledTapes>([] { return CompiledTapes(); });
  if (const TapeFunctions* const functions = tapes.published.find(unit)) return *functions;
  const auto made = tapes.made.get(unit, [&] { return compile_or_warn(*compiler, cell, unit); });
  return tapes.published.insert(unit, made.value->functions);
}

}  // namespace

TapeFunctions compiled_forward(const TracedCell& cell, DType type) { return functions_of(cell, {type}); }

TapeFunctions compiled_backward(const TracedCell& cell, DType type, bool with_inputs, bool with_params) {
  return functions_of(cell, {type, true, with_inputs, with_params});
}

}  // namespace spikeforge::cpu
