#include <spikeforge/runtime/event_linear_spec.h>

#include <fmt/format.h>

namespace spikeforge::runtime {

KernelSource print_source(const EventLinearSpec& spec) {
  return {.name = "event_linear",
          .entry = "event_linear",
          .text = fmt::format(R"(#include <spikeforge/cuda/event_linear.cuh>
namespace spikeforge {{
namespace event {{
using Kernel = {kernel};
extern "C" __global__ void __launch_bounds__(256) event_linear(const LinearArgs args) {{ linear<Kernel, {packed}>(args); }}
}}
}}
)",
                              fmt::arg("kernel", print_type(spec.product)), fmt::arg("packed", spec.packed))};
}

}  // namespace spikeforge::runtime
