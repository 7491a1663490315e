// Compiles the GPU kernels that models, or the predefined neurons, need into one file, without a GPU.
#include "csrc/base/confinement.h"
#include "csrc/base/own_process.h"
#include "csrc/base/printable.h"
#include "ops/kernel_pack.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Options {
  std::vector<std::string> models, archs, inputs, neurons;
  std::string output = "kernels.pack";
  bool predefined = false, train = false;
};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// "16,32,784:float16"
at::Tensor input_of(const std::string& text) {
  static const std::map<std::string, at::ScalarType> types = {
      {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}, {"float32", at::kFloat}, {"float64", at::kDouble}};
  const std::vector<std::string> parts = split(text, ':');
  const auto type = types.find(parts.size() == 2 ? parts[1] : "float32");
  if (parts.size() > 2 || type == types.end())
    throw CLI::ValidationError("--input", "the type in " + text + " is not float16, bfloat16, float32 or float64");
  std::vector<std::int64_t> sizes;
  for (const std::string& number : split(parts[0], ',')) {
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), size);
    if (error != std::errc() || end != number.data() + number.size() || size < 0)
      throw CLI::ValidationError("--input", text + " is not a shape such as 16,32,784 or 16,32,784:float16");
    sizes.push_back(size);
  }
  return at::rand(sizes, type->second);
}

// TorchScript's errors have the reason at the end, after the call stack; torch's own errors begin with it.
std::string reason(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string words = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  while (!words.empty() && words.back() == '\n') words.pop_back();
  const bool is_interpreters = words.find("TorchScript interpreter") != std::string::npos;
  return is_interpreters ? words.substr(words.rfind('\n') + 1) : words.substr(0, words.find('\n'));
}

at::Tensor first_tensor(const c10::IValue& result) {
  if (result.isTensor()) return result.toTensor();
  if (result.isTuple() && !result.toTupleRef().elements().empty())
    return first_tensor(result.toTupleRef().elements()[0]);
  throw std::runtime_error("the model returns no tensor for the gradient of --train");
}

// Creates the arguments of a call from `inputs`, a line of shapes separated by spaces.
void run(torch::jit::Module& model, const std::string& inputs, bool train) {
  std::vector<c10::IValue> arguments;
  for (const std::string& input : split(inputs, ' '))
    if (!input.empty()) arguments.emplace_back(input_of(input).requires_grad_(train));
  const c10::AutoGradMode with_gradients(train);
  train ? model.train() : model.eval();
  const c10::IValue result = model.forward(arguments);
  if (!train) return;
  const at::Tensor first = first_tensor(result);
  // Unlike that of a plain sum, the gradient has a different value for each element, like that of a loss.
  (first * at::rand_like(first)).sum().backward();
}

// The terminal of standard error before it was redirected to the parent process, which prints it at the end.
std::FILE* terminal = nullptr;

void show_progress(std::size_t done, std::size_t of) {
  if (terminal == nullptr) return;
  fmt::print(terminal, "\r{} of {} kernels{}", done, of, done == of ? "\n" : "");
  std::fflush(terminal);
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("models", options.models, "TorchScript files; each is run on the CPU with every --input");
  app.add_option("--arch", options.archs, "GPU architectures, such as sm_80,sm_90")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->required();
  app.add_option("--input", options.inputs,
                 "Shapes of the model's inputs, as \"16,32,784\" or \"16,32,784:float16 32,10\"; repeated for every "
                 "size that will be used, because a kernel depends on the numbers of neurons and steps")
      ->allow_extra_args(false);
  app.add_flag("--train", options.train, "Also compile the backward pass of the models");
  app.add_flag("--predefined", options.predefined, "Compile the most frequent calls of the predefined neurons");
  app.add_option("--neuron", options.neurons, "Only these predefined neurons, such as lif,plif")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("-o,--output", options.output, "The file to write")->capture_default_str();
}

int fail(const std::string& message) {
  fmt::print(stderr, "spikeforge-pack: {}\n", spikeforge::printable(message, spikeforge::Lines::several));
  return 1;
}

// A model may write no files, and this process only the pack: its kernels are not stored in the cache on disk.
void give_up_rights(const Options& options) {
  const std::filesystem::path folder = std::filesystem::path(options.output).parent_path();
  if (!spikeforge::confine({folder.empty() ? "." : folder.string()}).files)
    fmt::print(
        stderr,
        "spikeforge-pack: warning: this kernel has no Landlock: a model that breaks out of torch has your rights "
        "to write files\n");
}

void check(const Options& options) {
  if (options.models.empty() && !options.predefined && options.neurons.empty())
    throw CLI::ValidationError("models", "pass models, or --predefined");
  if (!options.models.empty() && options.inputs.empty())
    throw CLI::ValidationError("--input", "a model needs the shapes of its inputs");
}

int run(const Options& options) {
  if (!options.models.empty()) give_up_rights(options);
  spikeforge::record_kernels(options.archs);
  if (options.predefined || !options.neurons.empty()) spikeforge::record_predefined_kernels(options.neurons);
  for (const std::string& file : options.models) {
    try {
      torch::jit::Module model = torch::jit::load(file, at::kCPU);
      for (const std::string& inputs : options.inputs) {
        torch::jit::Module fresh = model.deepcopy();  // with the initial states
        run(fresh, inputs, options.train);
      }
    } catch (const CLI::Error&) {
      throw;
    } catch (const std::exception& e) {
      return fail(fmt::format("{}: {}", file, reason(e)));
    }
  }
  const auto count = spikeforge::write_kernel_pack(options.output, show_progress);
  fmt::print("{}: {} kernels for {}\n", options.output, count, CLI::detail::join(options.archs, ", "));
  if (count == 0) fmt::print(stderr, "spikeforge-pack: warning: the models called no neuron of spikeforge\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Compiles GPU kernels of spikeforge into one file, without a GPU. A program loads them from there, "
      "without NVRTC, if SPIKEFORGE_KERNEL_PACK names the file.");
  Options options;
  add_options(app, options);
  try {
    app.parse(argc, argv);
    check(options);
  } catch (const CLI::Error& e) {
    return app.exit(e);
  }
  if (::isatty(STDERR_FILENO) != 0) terminal = ::fdopen(::dup(STDERR_FILENO), "w");
  return spikeforge::in_own_process("spikeforge-pack", "a model crashed", [&] {
    try {
      return run(options);
    } catch (const CLI::Error& e) {
      return app.exit(e);
    } catch (const c10::Error& e) {
      return fail(e.what_without_backtrace());
    } catch (const std::exception& e) {
      return fail(e.what());
    }
  });
}
