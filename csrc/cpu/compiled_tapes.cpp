#include <spikeforge/base/once_map.h>
#include <spikeforge/base/published_map.h>
#include <spikeforge/cpu/compiled_tapes.h>
#include <spikeforge/cpu/host_compiler.h>
#include <spikeforge/cpu/print_tapes.h>
#include <spikeforge/cpu/traced_program.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include <dlfcn.h>

namespace spikeforge::cpu {
namespace {

// What is compiled at once.
struct Unit {
  const TracedCell* cell;
  DType type;
  bool is_backward = false, with_inputs = false, with_params = false;

  bool operator==(const Unit&) const = default;
};
struct HashOfUnit {
  std::size_t operator()(const Unit& unit) const {
    return unit.cell->number + 31 * (static_cast<std::size_t>(unit.type) * 8 + (unit.is_backward ? 4 : 0) +
                                     (unit.with_inputs ? 2 : 0) + unit.with_params);
  }
};

TapeFunctions compile(const HostCompiler& compiler, const Unit& unit) {
  const TracedProgram& program = program_of(*unit.cell);
  std::vector<NamedTape> tapes;
  if (unit.is_backward) {
    tapes.push_back({"spikeforge_advance", &program.advance});
    tapes.push_back({"spikeforge_backward", &program.backward(unit.with_inputs, unit.with_params)});
  } else {
    tapes.push_back({"spikeforge_step", &program.step});
  }
  const std::string name = unit.cell->name + (unit.is_backward ? "_backward" : "_forward");
  void* const object = compiler.load(name, print_tapes(tapes, unit.type));
  const auto function = [&](const char* symbol) { return reinterpret_cast<TapeFunction>(::dlsym(object, symbol)); };
  return {function("spikeforge_step"), function("spikeforge_advance"), function("spikeforge_backward")};
}

TapeFunctions compile_or_warn(const HostCompiler& compiler, const Unit& unit) {
  try {
    return compile(compiler, unit);
  } catch (const std::exception& e) {
    static std::once_flag once;
    std::call_once(once, [&] {
      std::fprintf(stderr, "spikeforge: warning: neuron %s is interpreted, not compiled: %s\n", unit.cell->name.c_str(),
                   e.what());
    });
    return {};
  }
}

TapeFunctions functions_of(Unit unit) {
  const HostCompiler* const compiler = HostCompiler::get();
  if (compiler == nullptr) return {};
  if (unit.type != DType::f64) unit.type = DType::f32;  // half types are converted before and after
  // Neither is ever destroyed, as the cells themselves. Who asks first compiles; hot calls take no lock.
  static auto& made = *new OnceMap<Unit, TapeFunctions, HashOfUnit>;
  static auto& published = *new PublishedMap<Unit, const TapeFunctions, HashOfUnit>;
  if (const TapeFunctions* const functions = published.find(unit)) return *functions;
  return published.insert(unit, *made.get(unit, [&] { return compile_or_warn(*compiler, unit); }).value);
}

}  // namespace

TapeFunctions compiled_forward(const TracedCell& cell, DType type) { return functions_of({&cell, type}); }

TapeFunctions compiled_backward(const TracedCell& cell, DType type, bool with_inputs, bool with_params) {
  return functions_of({&cell, type, true, with_inputs, with_params});
}

}  // namespace spikeforge::cpu
