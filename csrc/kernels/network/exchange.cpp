#include "csrc/kernels/event/spec.h"
#include "csrc/kernels/network/launch.h"
#include "csrc/kernels/network/matrix.h"

#include <fmt/format.h>

#include <algorithm>

namespace spikeforge::kernels {
namespace {

constexpr unsigned send_threads = 256;

}  // namespace

jit::KernelSource print_send(const NetworkLaunch& launch) {
  return {.name = "network_send",
          .entry = "spikeforge_network_send",
          .text = fmt::format(R"(#include <spikeforge/cuda/network/exchange.cuh>
namespace spikeforge {{
namespace event {{
using MatrixOfNetwork = {};
}}
extern "C" __global__ void __launch_bounds__({})
spikeforge_network_send(const __grid_constant__ network::ExchangeArguments args) {{
  network::send<event::MatrixOfNetwork>(args);
}}
}}  // namespace spikeforge
)",
                              event::print_type(matrix_of(launch)), send_threads)};
}

void send(const NetworkLaunch& launch, const network::ExchangeArguments& exchange, const jit::Device& device,
          void* stream) {
  network::ExchangeArguments arguments = exchange;
  constexpr std::int64_t of_a_warp = 128;  // connections of a warp in flight
  const std::int64_t of_a_row = arguments.network.matrix.nnz / std::max<std::int64_t>(arguments.network.whole, 1);
  arguments.network.pieces = std::clamp<std::int64_t>((of_a_row + of_a_warp - 1) / of_a_warp, 1, 1024);
  const unsigned blocks = 2 * static_cast<unsigned>(device.multiprocessors);
  jit::KernelCache::get()
      .get(print_send(launch), jit::name_of_arch(device))
      .launch({blocks, 1, 1}, send_threads, 0, stream, &arguments, sizeof arguments);
}

}  // namespace spikeforge::kernels
