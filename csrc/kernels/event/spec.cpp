#include "csrc/kernels/event/spec.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <string>

namespace spikeforge::event {
namespace {

struct Function {
  const char* name;
  const char* header;
  const char* arguments = "ProductArguments";
};

Function function_of(Kernel kernel) {
  constexpr Function functions[] = {{"pack", "gather.cuh"},
                                    {"gather_bits", "gather.cuh"},
                                    {"gather", "gather.cuh"},
                                    {"gather_with_gradient", "gather.cuh"},
                                    {"limits", "scatter.cuh"},
                                    {"scatter", "scatter.cuh"},
                                    {"finish", "scatter.cuh"},
                                    {"weight_gradient", "weights.cuh"},
                                    {"plasticity", "weights.cuh"},
                                    {"jit_gather", "jit.cuh", "JitArguments"},
                                    {"jit_scatter", "jit.cuh", "JitArguments"},
                                    {"linear", "linear.cuh", "LinearArguments"},
                                    {"check", "check.cuh", "CheckArguments"},
                                    {"deliver", "deliver.cuh"},
                                    {"take", "deliver.cuh"}};
  return functions[static_cast<int>(kernel)];
}

const char* cuda_name(EntryType type) {
  return type == EntryType::boolean ? "boolean" : spikeforge::cuda_name(static_cast<DType>(static_cast<int>(type) - 1));
}

const char* name_of(Sums sums) {
  constexpr const char* names[] = {"counts", "floats", "fixed"};
  return names[static_cast<int>(sums)];
}

bool reads_a_matrix(Kernel kernel) {
  switch (kernel) {
    case Kernel::gather_bits:
    case Kernel::gather:
    case Kernel::gather_with_gradient:
    case Kernel::scatter:
    case Kernel::weight_gradient:
    case Kernel::plasticity:
    case Kernel::deliver: return true;
    default: return false;
  }
}

std::string print_call(const KernelSpec& spec) {
  const char* const name = function_of(spec.kernel).name;
  switch (spec.kernel) {
    case Kernel::jit_gather:
    case Kernel::jit_scatter: return fmt::format("{}<Kernel, Distribution::{}>", name, name_of(spec.distribution));
    case Kernel::linear: return fmt::format("{}<Kernel, {}>", name, spec.packed);
    case Kernel::check: return fmt::format("{}<Kernel, {}>", name, spec.wide_indices ? "Int" : "int");
    default: return fmt::format("{}<Kernel>", name);
  }
}

}  // namespace

const char* name_of(Values values) {
  constexpr const char* names[] = {"event", "graded", "number"};
  return names[static_cast<int>(values)];
}

const char* name_of(Delays delays) {
  constexpr const char* names[] = {"none", "one", "bytes", "words", "drawn"};
  return names[static_cast<int>(delays)];
}

const char* name_of(Distribution distribution) {
  constexpr const char* names[] = {"constant", "uniform", "normal"};
  return names[static_cast<int>(distribution)];
}

// Returns the launch bounds. Blocks of a scatter wait for each other, so all must be resident: the kernel is compiled
// for their number. Fixed sums need 64 registers per thread and more; a block with private sums is the only one on its
// multiprocessor. A gather of several vectors gains more from a fifth block than it loses with fewer registers, unless
// registers would spill.
Bounds bounds(const KernelSpec& spec) {
  switch (spec.kernel) {
    case Kernel::plasticity:
    case Kernel::jit_gather:
    case Kernel::jit_scatter:
    case Kernel::linear:
    case Kernel::check:
    case Kernel::take: return {256, 1};
    case Kernel::gather_bits: return {512, 2};
    case Kernel::gather: return {256, spec.columns == 1 || spec.weight == DType::f64 ? 4 : 5};
    case Kernel::gather_with_gradient: return {256, spec.weight == DType::f64 ? 3 : 4};
    case Kernel::deliver: return {256, spec.sums == Sums::fixed ? 2 : 4};
    case Kernel::scatter:
      if (spec.in_shared_memory) return {1024, 1};
      return {256, spec.sums == Sums::fixed ? 2 : spec.sums == Sums::floats || spec.delays != Delays::none ? 3 : 4};
    default: return {1024, 1};
  }
}

std::string print_type(const KernelSpec& spec) {
  return fmt::format("Spec<{}, {}, Values::{}, {}, {}, Sums::{}, {}, {}, {}, {}, {}, Delays::{}>",
                     spikeforge::cuda_name(spec.weight), cuda_name(spec.entry), name_of(spec.values), spec.homogeneous,
                     spec.indptr_bytes, name_of(spec.sums), spec.lanes, spec.columns, spec.unroll,
                     spec.in_shared_memory, spec.transpose, name_of(spec.delays));
}

jit::KernelSource print_source(const KernelSpec& spec) {
  const Function function = function_of(spec.kernel);
  const std::string name = fmt::format("event_{}", function.name);
  const auto [threads, blocks] = bounds(spec);
  return {.name = name,
          .entry = name,
          .text = fmt::format(R"(#include <spikeforge/cuda/event/{header}>
namespace spikeforge {{
namespace event {{
using Kernel = {kernel};
extern "C" __global__ void __launch_bounds__({threads}, {blocks}) {name}(const {arguments} args) {{ {guard}{call}(args); }}
}}
}}
)",
                              fmt::arg("header", function.header), fmt::arg("kernel", print_type(spec)),
                              fmt::arg("threads", threads), fmt::arg("blocks", blocks), fmt::arg("name", name),
                              fmt::arg("arguments", function.arguments), fmt::arg("call", print_call(spec)),
                              fmt::arg("guard", reads_a_matrix(spec.kernel) ? "if (is_refused(args)) return; " : ""))};
}

}  // namespace spikeforge::event
