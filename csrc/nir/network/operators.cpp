// The operators of the namespace spikeforge_nir, which the Python package calls. Modules are described as in
// description.h, values of files as in values.h.
#include "csrc/nir/error.h"
#include "csrc/nir/network/description.h"
#include "csrc/nir/network/from_module.h"
#include "csrc/nir/network/option_words.h"
#include "csrc/nir/network/restore.h"
#include "csrc/nir/network/to_module.h"
#include "csrc/nir/network/values.h"
#include "csrc/nir/read.h"
#include "csrc/nir/write.h"

#include <ATen/core/stack.h>
#include <fmt/format.h>
#include <torch/library.h>

namespace spikeforge::nir {
namespace {

class PythonOptions {
 public:
  explicit PythonOptions(const c10::impl::GenericDict& values) : values_(values) {}

  ModuleOptions module() const {
    ModuleOptions options;
    with("dt", [&](const c10::IValue& value) { options.dt = value.toDouble(); });
    options.reset = word("reset", resets);
    options.if_scaling = word("if_scaling", if_scalings);
    options.comparison = word("comparison", comparisons);
    options.cuba_current = word("cuba_current", cuba_currents);
    options.recurrent_start = word("recurrent_start", recurrent_starts);
    options.delays = word("delays", delay_roundings).value_or(options.delays);
    options.shapes = word("shapes", shape_rules).value_or(options.shapes);
    with("surrogate", [&](const c10::IValue& value) { options.surrogate = Surrogate{value.toStringRef(), {}}; });
    with("surrogate_args", [&](const c10::IValue& value) { options.surrogate->args = value.toDoubleVector(); });
    with("learn_neurons", [&](const c10::IValue& value) { options.learn_neurons = value.toBool(); });
    with("fold_time", [&](const c10::IValue& value) { options.fold_time = value.toBool(); });
    with("dtype", [&](const c10::IValue& value) { options.dtype = value.toScalarType(); });
    with("reserved_names", [&](const c10::IValue& value) {
      for (const c10::IValue& name : value.toListRef()) options.reserved_names.insert(name.toStringRef());
    });
    with("device", [&](const c10::IValue& value) { options.device = c10::Device(value.toStringRef()); });
    return options;
  }

  Limits limits() const {
    Limits limits;
    with("max_bytes", [&](const c10::IValue& value) { limits.bytes = static_cast<std::uint64_t>(value.toInt()); });
    return limits;
  }

 private:
  template <class Function> void with(const char* name, Function&& function) const {
    if (const auto found = values_.find(name); found != values_.end()) function(found->value());
  }
  template <class E, std::size_t N> std::optional<E> word(const char* name, const Word<E> (&words)[N]) const {
    const auto found = values_.find(name);
    if (found == values_.end()) return {};
    const std::string& given = found->value().toStringRef();
    std::string legal;
    for (const Word<E>& word : words) {
      if (given == word.text) return word.value;
      legal += (legal.empty() ? "" : ", ") + std::string(word.text);
    }
    throw Error("", "", fmt::format("{} must be one of {}, but is {}", name, legal, printable(given)));
  }

  c10::impl::GenericDict values_;
};

c10::impl::GenericList texts(const Report& report) {
  c10::impl::GenericList texts(c10::StringType::get());
  for (const std::string& warning : report.warnings) texts.push_back(warning);
  return texts;
}

// Converts exceptions to an exception that becomes a ValueError in Python.
template <void (*Function)(torch::jit::Stack&)> void operation(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  try {
    Function(*stack);
  } catch (const Error& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

template <class Function> auto in_file(const std::string& file, Function&& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw error.in_file(file);
  }
}

void warn_of_other_dt(const Graph& graph, const ModuleOptions& options, Report& report) {
  const auto saved = dt_of_metadata(graph);
  if (saved && *saved != options.dt)
    report.warn(
        fmt::format("saved with dt = {}, but loaded with dt = {}: neurons are stepped by NIR's equations, and an "
                    "input of as many steps lasts another time",
                    *saved, options.dt));
}

// (str path, Dict options) -> (description, warnings)
void load_file(torch::jit::Stack& stack) {
  const PythonOptions options(torch::jit::pop(stack).toGenericDict());
  const std::string path = torch::jit::pop(stack).toStringRef();
  Report report;
  Graph graph = read(path, options.limits(), &report);
  const ModuleOptions module = options.module();
  warn_of_other_dt(graph, module, report);
  const nn::Composite network = in_file(path, [&] { return to_module(std::move(graph), module); });
  torch::jit::push(stack, description_of(network), texts(report));
}

// (Dict values, Dict options) -> (description, warnings)
void load_values(torch::jit::Stack& stack) {
  const PythonOptions options(torch::jit::pop(stack).toGenericDict());
  const auto values = torch::jit::pop(stack).toGenericDict();
  Report report;
  Graph graph = graph_of(group_of_values(values), options.limits(), report);
  const ModuleOptions module = options.module();
  warn_of_other_dt(graph, module, report);
  torch::jit::push(stack, description_of(to_module(std::move(graph), module)), texts(report));
}

struct Exported {
  Graph graph;
  Report report;
};

// Reads the last arguments: (Dict[] description, int[] shape, float dt).
Exported exported(torch::jit::Stack& stack) {
  const double dt = torch::jit::pop(stack).toDouble();
  const std::vector<std::int64_t> shape = torch::jit::pop(stack).toIntVector();
  const nn::Part network = part_of_description(torch::jit::pop(stack).toList());
  Exported exported;
  exported.graph = from_module(network, at::empty(shape, at::TensorOptions(c10::kMeta)), dt, &exported.report);
  return exported;
}

// (str path, int compression, Dict[] description, int[] shape, float dt) -> warnings
void save_file(torch::jit::Stack& stack) {
  const Exported network = exported(stack);
  const std::int64_t compression = torch::jit::pop(stack).toInt();
  write(network.graph, torch::jit::pop(stack).toStringRef(), {.compression = static_cast<int>(compression)});
  torch::jit::push(stack, texts(network.report));
}

// (Dict[] description, int[] shape, float dt) -> (values, warnings)
void save_values(torch::jit::Stack& stack) {
  const Exported network = exported(stack);
  torch::jit::push(stack, values_of(group_of(network.graph)), texts(network.report));
}

// (str file) -> the reason why libhdf5 cannot be loaded, or nothing
void load_library(torch::jit::Stack& stack) {
  const std::string file = torch::jit::pop(stack).toStringRef();
  std::string reason;
  try {
    load_hdf5(file);
  } catch (const std::runtime_error& error) {
    reason = error.what();
  }
  torch::jit::push(stack, reason);
}

template <void (*Function)(torch::jit::Stack&)> torch::CppFunction kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&operation<Function>>();
}

TORCH_LIBRARY(spikeforge_nir, library) {
  library.def("load_file(str path, Dict(str, Any) options) -> (Dict(str, Any)[], str[])", kernel<load_file>());
  library.def("load_values(Dict(str, Any) values, Dict(str, Any) options) -> (Dict(str, Any)[], str[])",
              kernel<load_values>());
  library.def("load_hdf5(str file) -> str", kernel<load_library>());
  library.def("save_file(str path, int compression, Dict(str, Any)[] network, int[] shape, float dt) -> str[]",
              kernel<save_file>());
  library.def("save_values(Dict(str, Any)[] network, int[] shape, float dt) -> (Dict(str, Any), str[])",
              kernel<save_values>());
}

}  // namespace
}  // namespace spikeforge::nir
