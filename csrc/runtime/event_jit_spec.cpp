#include <spikeforge/runtime/event_jit_spec.h>

#include <fmt/format.h>

namespace spikeforge::runtime {

KernelSource print_source(const EventJitSpec& spec) {
  constexpr const char* laws[] = {"constant", "uniform", "normal"};
  const char* const body = spec.product.transpose ? "jit_scatter" : "jit_gather";
  const std::string name = fmt::format("event_{}", body);
  return {.name = name,
          .entry = name,
          .text = fmt::format(R"(#include <spikeforge/cuda/event_jit.cuh>
namespace spikeforge {{
namespace event {{
using Kernel = {kernel};
extern "C" __global__ void __launch_bounds__(256) {name}(const JitArgs args) {{ {body}<Kernel, Law::{law}>(args); }}
}}
}}
)",
                              fmt::arg("kernel", print_type(spec.product)), fmt::arg("name", name),
                              fmt::arg("body", body), fmt::arg("law", laws[static_cast<int>(spec.law)]))};
}

}  // namespace spikeforge::runtime
