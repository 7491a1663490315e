#include <spikeforge/kernels/event/jit_spec.h>

#include <fmt/format.h>

namespace spikeforge::jit {

KernelSource print_source(const EventJitSpec& spec) {
  constexpr const char* laws[] = {"constant", "uniform", "normal"};
  const char* const body = spec.product.transpose ? "jit_scatter" : "jit_gather";
  return print_entry({.header = "event_jit.cuh",
                      .name = fmt::format("event_{}", body),
                      .bounds = {256, 1},
                      .arguments = "JitArgs",
                      .body = fmt::format("{}<Kernel, Law::{}>", body, laws[static_cast<int>(spec.law)])},
                     spec.product);
}

}  // namespace spikeforge::jit
