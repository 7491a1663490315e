#include <spikeforge/kernels/event/linear_spec.h>

#include <fmt/format.h>

namespace spikeforge::jit {

KernelSource print_source(const EventLinearSpec& spec) {
  return print_entry({.header = "event_linear.cuh",
                      .name = "event_linear",
                      .bounds = {256, 1},
                      .arguments = "LinearArgs",
                      .body = fmt::format("linear<Kernel, {}>", spec.packed)},
                     spec.product);
}

}  // namespace spikeforge::jit
