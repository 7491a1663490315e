// Checks a neuron file, prints its graphs and kernels, and compiles its kernels without a GPU.
#include "csrc/base/printable.h"
#include "csrc/graph/text.h"
#include "csrc/jit/nvrtc.h"
#include "csrc/kernels/multistep/typical_kernels.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace spikeforge;

struct Options {
  std::string file;
  bool text = false, step = false, derivative = false, cuda = false;
  kernels::TypicalCall call;
  std::vector<std::string> archs;
};

void add_options(CLI::App& app, Options& options) {
  static const std::map<std::string, DType> types = {
      {"float16", DType::f16}, {"bfloat16", DType::bf16}, {"float32", DType::f32}, {"float64", DType::f64}};
  app.add_option("file", options.file, "The neuron's text; - is the standard input")->required();
  app.add_flag("--text", options.text, "Print the neuron in the library's format");
  app.add_flag("--step", options.step, "Print the graphs of the computations once per neuron and in a step");
  app.add_flag("--derivative", options.derivative, "Print the graphs of the backward pass");
  app.add_flag("--cuda", options.cuda, "Print the source of the forward and the backward kernel");
  app.add_option("--arch", options.archs, "Compile both kernels for an architecture such as sm_90; may be repeated")
      ->check(CLI::Validator(
          [](const std::string& arch) {
            const bool is_arch = arch.size() > 3 && arch.starts_with("sm_") &&
                                 arch.find_first_not_of("0123456789", 3) == std::string::npos;
            return is_arch ? "" : "an architecture is sm_ and a number, such as sm_90, not " + arch;
          },
          "ARCH"));
  app.add_option("--dtype", options.call.type, "Type of the inputs: float16, bfloat16, float32 or float64")
      ->transform(CLI::CheckedTransformer(types).description(""));
  app.add_option("--steps", options.call.steps, "Steps T of the call for which kernels are compiled")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--neurons", options.call.neurons, "Neurons N of the call for which kernels are compiled")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

// Reads a text, possibly from a pipe, up to its end or until it is longer than any legal text.
std::string read(const std::string& file) {
  std::ifstream opened;
  if (file != "-") opened.open(file);
  std::istream& stream = file == "-" ? std::cin : opened;
  std::string text;
  std::array<char, 4096> piece;
  while (text.size() <= graph::most_text && (stream.read(piece.data(), piece.size()), stream.gcount() > 0))
    text.append(piece.data(), static_cast<std::size_t>(stream.gcount()));
  if (stream.bad() || (!stream.eof() && text.size() <= graph::most_text))
    throw CLI::FileError(fmt::format("cannot read {}", file));
  return text;
}

std::string counted(std::size_t count, const std::string& word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

std::size_t operations(const graph::Graph& graph) { return graph.size() - graph.argument_count(); }

void print_summary(const TracedCell& cell) {
  const autodiff::Stages& stages = cell.stages;
  fmt::print("{}: {}, {}, {}, {}\n", cell.name, counted(stages.inputs, "input"), counted(stages.states, "state"),
             counted(stages.params, "parameter"), counted(stages.outputs, "output"));
  fmt::print("  {} once a neuron, {} a step, {} a step backward\n", counted(operations(stages.prologue), "operation"),
             operations(stages.step), operations(stages.backward));
}

void compile(const TracedCell& cell, const Options& options) {
  const kernels::TypicalKernels typical = typical_kernels(cell, options.call);
  for (const std::string& arch : options.archs)
    for (const kernels::KernelSpec& spec : {typical.forward, typical.backward}) {
      const jit::KernelSource source = print_source(spec);
      const auto start = std::chrono::steady_clock::now();
      const jit::CompileResult result = jit::Nvrtc::get().compile({.name = source.name,
                                                                   .text = source.text,
                                                                   .options = source.options,
                                                                   .arch = arch,
                                                                   .headers = {},
                                                                   .anew = true});
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      fmt::print("{:8} {:32} ", arch, source.name);
      if (result.usage)
        fmt::print("{:3} registers, {} bytes spilled, ", result.usage->registers, result.usage->spill_bytes);
      fmt::print("{} {}, {:.2f} s\n", result.image.size(), result.is_ptx ? "bytes of PTX" : "bytes", time.count());
    }
}

void show(const TracedCell& cell, const Options& options) {
  const bool only_checks =
      !options.text && !options.step && !options.derivative && !options.cuda && options.archs.empty();
  if (only_checks) print_summary(cell);
  std::vector<std::string> sections;
  if (options.text) sections.push_back(graph::print(cell.graph));
  if (options.step) {
    sections.push_back(graph::print(cell.stages.prologue, "prologue"));
    sections.push_back(graph::print(cell.stages.step, "step"));
  }
  if (options.derivative) {
    sections.push_back(graph::print(cell.stages.backward, "backward"));
    sections.push_back(graph::print(cell.stages.epilogue, "epilogue"));
  }
  if (options.cuda) sections.push_back(print_cuda(cell, options.call));
  fmt::print("{}", fmt::join(sections, "\n"));
  compile(cell, options);
}

int fail(int code, const std::string& message) {
  fmt::print(stderr, "spikeforge-neuron: {}\n", printable(message, Lines::several));
  return code;
}

}  // namespace

// 0: done. 1: the neuron is not legal, or its kernels do not compile. 2: the command line or the file is wrong.
int main(int argc, char** argv) {
  Options options;
  CLI::App app("Checks a neuron file, prints its graphs and kernels, and compiles its kernels without a GPU.",
               "spikeforge-neuron");
  add_options(app, options);
  try {
    app.parse(argc, argv);
    show(TracedCell(read(options.file)), options);
    return 0;
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::FileError& error) {
    return fail(2, error.what());
  } catch (const CLI::ParseError& error) {
    return fail(2, fmt::format("{} (--help lists the options)", error.what()));
  } catch (const std::exception& error) {
    return fail(1, fmt::format("{}: {}", options.file, error.what()));
  }
}
