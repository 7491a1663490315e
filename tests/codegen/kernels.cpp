// Compiles the kernels of traced cells with NVRTC, for several architectures. Needs no GPU.
#include "csrc/autodiff/jvp.h"
#include "csrc/jit/nvrtc.h"
#include "csrc/kernels/multistep/typical_kernels.h"

#include "tests/catch.h"
#include "tests/codegen/gallery.h"
#include "tests/graph/random_graph.h"

#include "csrc/graph/layer.h"
#include "csrc/graph/text.h"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace spikeforge::test {
namespace {

using kernels::KernelSpec;
using kernels::Schedule;
using kernels::Tensors;
using kernels::TypicalCall;
using kernels::TypicalKernels;

// As in tests/kernels/compile.cpp, ptxas may spill one or two registers (in float64, pairs of registers) around a loop.
// A kernel with more spills does not fit.
int parked_bytes(DType type) { return type == DType::f64 ? 32 : 24; }

struct Kernel {
  DType type;
  std::string label;
  jit::KernelSource source;
};

struct CompiledKernels {
  jit::ResourceUsage usage;
  double seconds = 0;
};

void add_kernels(std::vector<Kernel>& kernels, const TracedCell& cell, const TypicalCall& call) {
  const TypicalKernels typical = typical_kernels(cell, call);
  for (const KernelSpec& spec : {typical.forward, typical.backward}) {
    const Schedule& schedule = spec.loop.schedule;
    jit::KernelSource source = print_source(spec);
    kernels.push_back(
        {call.type,
         fmt::format("{:28} {:8} T={:<5} N={:<8} width {} rows {}{} checkpoint {} segments {}", source.name,
                     kernels::name_of(call.type), call.steps, call.neurons, schedule.width, schedule.rows,
                     schedule.staged ? " staged" : "", schedule.checkpoint, schedule.segments),
         std::move(source)});
  }
}

CompiledKernels compile(const jit::KernelSource& source, const std::string& arch) {
  const auto start = std::chrono::steady_clock::now();
  const jit::CompileResult result = jit::Nvrtc::get().compile(
      {.name = source.name, .text = source.text, .options = source.options, .arch = arch, .headers = {}, .anew = true});
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  return {result.usage.value(), time.count()};
}

// `bound` returns the maximum number of spilled bytes for a type.
void compile_all(const std::vector<Kernel>& kernels, const std::string& arch,
                 const std::function<int(DType)>& bound = parked_bytes) {
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  std::vector<std::string> failures;
  const auto work = [&] {
    for (std::size_t i = next++; i < kernels.size(); i = next++) {
      std::string failure;
      try {
        const CompiledKernels compiled = compile(kernels[i].source, arch);
        const std::string line = fmt::format("{} {}: {} registers, {} bytes spilled, {:.2f} s", arch, kernels[i].label,
                                             compiled.usage.registers, compiled.usage.spill_bytes, compiled.seconds);
        const std::scoped_lock lock(mutex);
        if (std::getenv("SPIKEFORGE_TEST_VERBOSE")) std::cout << line << std::endl;
        if (compiled.usage.spill_bytes > bound(kernels[i].type)) failure = line;
      } catch (const std::exception& error) {
        failure = kernels[i].label + "\n" + error.what() + "\n" + kernels[i].source.text;
      }
      const std::scoped_lock lock(mutex);
      if (!failure.empty()) failures.push_back(failure);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) UNSCOPED_INFO(failure);
  CHECK(failures.empty());
}

// Compiles each neuron for one call. The calls are assigned cyclically, from number `turn` on.
void compile_gallery(const std::string& arch, std::span<const TypicalCall> calls, std::size_t turn) {
  std::vector<Kernel> kernels;
  for (const auto& [name, text] : gallery()) add_kernels(kernels, *intern(text), calls[turn++ % calls.size()]);
  compile_all(kernels, arch);
}

const std::array<TypicalCall, 5> gallery_calls = {
    {{.type = DType::f32},
     {.type = DType::f32, .steps = 1024, .neurons = 4096},
     {.type = DType::f16, .steps = 32},
     {.type = DType::bf16, .steps = 100, .neurons = 1000001, .tensors = Tensors::none},
     {.type = DType::f64, .steps = 128, .neurons = 1 << 15, .store_states = true}}};

void compile_random_cells(std::uint64_t first, std::uint64_t last) {
  std::vector<Kernel> kernels;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    add_kernels(kernels, *intern(graph::print(random_cell(seed, {.operations = 40}))),
                {.type = seed % 2 ? DType::f32 : DType::f64});
  }
  compile_all(kernels, "sm_90", [](DType) { return 100000; });
}

}  // namespace

TEST_CASE("usual kernels of the gallery compile for sm_90 without spills") {
  compile_gallery("sm_90", std::span(gallery_calls).first(1), 0);
}
TEST_CASE("kernels of the gallery, for each architecture those of other calls, compile without spills", "[long]") {
  std::size_t turn = 0;
  for (const char* arch : {"sm_80", "sm_90", "sm_100", "sm_120"}) compile_gallery(arch, gallery_calls, turn++);
}

TEST_CASE("a neuron without states, or without parameters, or with neither, compiles") {
  std::vector<Kernel> kernels;
  for (const char* text : {"neuron threshold(x) { return spike(x - 1, atan(2)) }",
                           "neuron scaled(x, y;; a, b) { return spike(a * x - b, atan(2)), y * a }",
                           "neuron counter(x; n) { return n\n n' = n + x }"})
    for (const TypicalCall& call :
         {TypicalCall{}, {.steps = 1024, .neurons = 4096}, {.type = DType::f64, .steps = 100}})
      add_kernels(kernels, *intern(text), call);
  compile_all(kernels, "sm_90");
}

TEST_CASE("neurons with their tangents, and the derivatives of these, compile for sm_90") {
  std::vector<Kernel> kernels;
  for (const char* text : {"neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, sigmoid(4)); return s\n"
                           "v' = select(s, 0, h) }",
                           "neuron alif(x; v, a; tau, b) { h = v + (x - v) / tau; s = spike(h - 1 - a, s2nn(4, 1))\n"
                           "return s\n v' = h - s; a' = 0.9 * a + b * s }"}) {
    const graph::Cell cell = graph::parse(text);
    const std::vector<bool> all(cell.param_count(), true);
    add_kernels(kernels, *intern(graph::print(autodiff::jvp(cell, {true}, all))), {.steps = 32});
  }
  compile_all(kernels, "sm_90");
}

TEST_CASE("neurons with the layer around them compile for the oldest and the newest architecture without spills") {
  const graph::Cell lif = graph::parse(
      "neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s\n v' = select(s, 0, h) }");
  std::vector<Kernel> kernels;
  for (const graph::Layer& around : {graph::Layer{.normalised = true, .residual = std::nullopt},
                                     graph::Layer{.normalised = true, .residual = graph::Residual::inhibit}})
    add_kernels(kernels, *intern(graph::print(graph::layer(lif, around))), {.type = DType::f16, .steps = 4});
  for (const char* arch : {"sm_80", "sm_120"}) compile_all(kernels, arch);
}

TEST_CASE("random cells, of every operation, compile") { compile_random_cells(2001, 2008); }
TEST_CASE("more random cells compile", "[long]") { compile_random_cells(2009, 2024); }

}  // namespace spikeforge::test
