#include "csrc/kernels/network/launch.h"

#include <fmt/format.h>

#include <algorithm>

namespace spikeforge::kernels {
namespace {

constexpr unsigned near_threads = 256;

const char* whole_number_of(int bytes) {
  switch (bytes) {
    case 2: return "unsigned short";
    case 4: return "unsigned";
    case 8: return "unsigned long long";
    default: return "unsigned char";
  }
}

}  // namespace

jit::KernelSource print_near_first(int weight_bytes, int delay_bytes) {
  return {.name = "network_near_first",
          .entry = "spikeforge_near_first",
          .text = fmt::format(R"(#include <spikeforge/cuda/network/near_first.cuh>
extern "C" __global__ void __launch_bounds__({}) spikeforge_near_first(const spikeforge::network::NearArguments args) {{
  spikeforge::network::near_first<{}, {}>(args);
}}
)",
                              near_threads, whole_number_of(weight_bytes), whole_number_of(delay_bytes))};
}

void bring_near_first(const network::NearArguments& arguments, int weight_bytes, int delay_bytes,
                      const jit::Device& device, void* stream) {
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(arguments.rows, 8LL * device.multiprocessors));
  if (blocks == 0) return;
  jit::KernelCache::get()
      .get(print_near_first(weight_bytes, delay_bytes), jit::name_of_arch(device))
      .launch({blocks, 1, 1}, near_threads, 0, stream, &arguments, sizeof arguments);
}

}  // namespace spikeforge::kernels
