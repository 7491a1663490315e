// Tapes compiled by the machine's compiler, beside the interpreter: the same bits.
#include <spikeforge/cpu/host_compiler.h>
#include <spikeforge/cpu/print_tapes.h>
#include <spikeforge/graph/text.h>

#include "catch.h"
#include "cpu/run_interpreter.h"

#include <cmath>
#include <cstdio>
#include <deque>
#include <stdexcept>
#include <vector>

#include <dlfcn.h>

namespace spikeforge::test {
namespace {

constexpr std::uint64_t cells = 24;

// Random ones, and one with each kind of surrogate.
std::deque<TracedCell> some_cells() {
  std::deque<TracedCell> all;  // in place: cells are not copied
  for (std::uint64_t seed = 0; seed < cells; ++seed)
    all.emplace_back(print(random_cell(seed, {.operations = seed % 2 == 0 ? 24 : 8})));
  for (const char* surrogate :
       {"sigmoid(4)", "atan(2)", "erf(1.5)", "leaky_k_relu(0.1, 1)", "squarewave_fourier(2, 8)"})
    all.emplace_back(std::string("neuron n(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, ") + surrogate +
                     "); return s; v' = select(s, 0, h) }");
  return all;
}

std::string name_of(const char* what, std::size_t cell) { return what + std::to_string(cell); }

template <class F>
std::size_t differing(const Rows<F>& a, const Rows<F>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < a[i].size(); ++k)
      count += std::isnan(a[i][k]) ? !std::isnan(b[i][k])
                                   : a[i][k] != b[i][k] || std::signbit(a[i][k]) != std::signbit(b[i][k]);
  return count;
}

template <class F>
void compare_all() {
  const std::deque<TracedCell> all = some_cells();
  std::vector<TracedProgram> programs;
  for (const TracedCell& cell : all) programs.emplace_back(cell);
  std::vector<cpu::NamedTape> tapes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    tapes.push_back({name_of("step", i), &programs[i].step});
    tapes.push_back({name_of("advance", i), &programs[i].advance});
    tapes.push_back({name_of("backward", i), &programs[i].backward(true, true)});
  }
  const DType type = sizeof(F) == 8 ? DType::f64 : DType::f32;
  void* const object = cpu::HostCompiler(SPIKEFORGE_TEST_CXX).load("test", cpu::print_tapes(tapes, type));
  std::size_t compared = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto function = [&](const char* what) {
      return reinterpret_cast<cpu::TapeFunction>(::dlsym(object, name_of(what, i).c_str()));
    };
    const cpu::TapeFunctions functions{function("step"), function("advance"), function("backward")};
    REQUIRE((functions.step && functions.advance && functions.backward));
    const Numbers<F> at = random_numbers<F>(all[i].graph, i);
    for (const std::int64_t tile : {neurons, std::int64_t{64}}) {
      INFO("tiles of " << tile << "\n" << all[i].text);
      const Outcome<F> compiled = run_interpreter<F>(cpu::loops().traced, all[i], at, tile, functions);
      const Outcome<F> interpreted = run_interpreter<F>(cpu::loops().traced, all[i], at, tile);
      CHECK(differing(compiled.outputs, interpreted.outputs) == 0);
      CHECK(differing(compiled.states, interpreted.states) == 0);
      CHECK(differing(compiled.grad_inputs, interpreted.grad_inputs) == 0);
      CHECK(differing(compiled.grad_initial, interpreted.grad_initial) == 0);
      CHECK(differing(compiled.grad_params, interpreted.grad_params) == 0);
      for (const auto& row : interpreted.grad_inputs) compared += row.size();
    }
  }
  CHECK(compared > 5000);
}

}  // namespace

TEST_CASE("compiled tapes give the bits of the interpreter, in float32") { compare_all<float>(); }

TEST_CASE("compiled tapes give the bits of the interpreter, in float64") { compare_all<double>(); }

TEST_CASE("a compiler that is not there, or fails, is an exception with its words") {
  const auto message = [](const char* command, const char* text) -> std::string {
    try {
      cpu::HostCompiler(command).load("test", text);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "none";
  };
  CHECK(message("no-such-compiler", "").find("there is no compiler no-such-compiler") != std::string::npos);
  CHECK(message("/no/such/compiler", "").find("there is no compiler /no/such/compiler") != std::string::npos);
  CHECK(message("/bin/false", "").find("/bin/false failed") != std::string::npos);
  CHECK(message("/bin/true", "").find("/bin/true wrote nothing") != std::string::npos);
  CHECK(message("/etc/passwd", "").find("/etc/passwd cannot be started") != std::string::npos);
  CHECK(message(SPIKEFORGE_TEST_CXX, "int f() { return no_such_name; }").find("no_such_name") != std::string::npos);
}

}  // namespace spikeforge::test
