#include <spikeforge/runtime/event_linear_spec.h>

#include <fmt/format.h>

namespace spikeforge::runtime {

KernelSource print_source(const EventLinearSpec& spec) {
  return print_entry({.header = "event_linear.cuh",
                      .name = "event_linear",
                      .bounds = {256, 1},
                      .arguments = "LinearArgs",
                      .body = fmt::format("linear<Kernel, {}>", spec.packed)},
                     spec.product);
}

}  // namespace spikeforge::runtime
