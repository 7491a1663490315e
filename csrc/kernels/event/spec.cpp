#include <spikeforge/kernels/event/spec.h>

#include <fmt/format.h>

namespace spikeforge::jit {
namespace {

const char* name_of(EventKernel kernel) {
  constexpr const char* names[] = {"pack",    "gather_bits", "gather",          "limits",
                                   "scatter", "finish",      "weight_gradient", "plasticity"};
  return names[static_cast<int>(kernel)];
}

const char* header_of(EventKernel kernel) {
  switch (kernel) {
    case EventKernel::pack:
    case EventKernel::gather_bits:
    case EventKernel::gather:
      return "event_gather.cuh";
    case EventKernel::limits:
    case EventKernel::scatter:
    case EventKernel::finish:
      return "event_scatter.cuh";
    default:
      return "event_weights.cuh";
  }
}

const char* type_of(DType type) {
  constexpr const char* names[] = {"f16", "bf16", "float", "double"};
  return names[static_cast<int>(type)];
}

const char* type_of(event::EntryType type) {
  return type == event::EntryType::boolean ? "boolean" : type_of(static_cast<DType>(static_cast<int>(type) - 1));
}

const char* name_of(event::Values values) {
  constexpr const char* names[] = {"event", "graded", "number"};
  return names[static_cast<int>(values)];
}

const char* name_of(EventSums sums) {
  constexpr const char* names[] = {"counts", "floats", "fixed"};
  return names[static_cast<int>(sums)];
}

}  // namespace

// Blocks of a scatter wait for each other, and so must all be there: their number is part of what it is compiled for.
// Fixed sums take 64 registers a thread and more; a block with sums of its own is alone on its multiprocessor. A gather
// of several vectors gains from a fifth block what it loses in registers, unless it would spill them.
Bounds bounds(const EventSpec& spec) {
  if (spec.kernel == EventKernel::plasticity) return {256, 1};
  if (spec.kernel == EventKernel::gather_bits) return {512, 2};
  if (spec.kernel == EventKernel::gather) return {256, spec.columns == 1 || spec.weight == DType::f64 ? 4 : 5};
  if (spec.kernel != EventKernel::scatter || spec.in_shared) return {1024, 1};
  return {256, spec.sums == EventSums::fixed ? 2 : spec.sums == EventSums::floats ? 3 : 4};
}

std::string print_type(const EventSpec& spec) {
  return fmt::format("Spec<{}, {}, Values::{}, {}, {}, Sums::{}, {}, {}, {}, {}, {}>", type_of(spec.weight),
                     type_of(spec.entry), name_of(spec.values), spec.shared, spec.indptr_bytes, name_of(spec.sums),
                     spec.lanes, spec.columns, spec.unroll, spec.in_shared, spec.transpose);
}

KernelSource print_entry(const EventEntry& entry, const EventSpec& spec) {
  return {.name = entry.name,
          .entry = entry.name,
          .text = fmt::format(R"(#include <spikeforge/cuda/{header}>
namespace spikeforge {{
namespace event {{
using Kernel = {kernel};
extern "C" __global__ void __launch_bounds__({threads}, {blocks}) {name}(const {arguments} args) {{ {body}(args); }}
}}
}}
)",
                              fmt::arg("header", entry.header), fmt::arg("kernel", print_type(spec)),
                              fmt::arg("threads", entry.bounds.threads), fmt::arg("blocks", entry.bounds.blocks),
                              fmt::arg("name", entry.name), fmt::arg("arguments", entry.arguments),
                              fmt::arg("body", entry.body))};
}

KernelSource print_source(const EventSpec& spec) {
  const char* const body = name_of(spec.kernel);
  return print_entry({.header = header_of(spec.kernel),
                      .name = fmt::format("event_{}", body),
                      .bounds = bounds(spec),
                      .arguments = "ProductArgs",
                      .body = fmt::format("{}<Kernel>", body)},
                     spec);
}

}  // namespace spikeforge::jit
