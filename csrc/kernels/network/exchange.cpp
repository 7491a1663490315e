#include <spikeforge/kernels/event/spec.h>
#include <spikeforge/kernels/network/launch.h>
#include <spikeforge/kernels/network/matrix.h>

#include <fmt/format.h>

#include <algorithm>

namespace spikeforge::kernels {
namespace {

constexpr unsigned threads = 256;

void launch_exchange(const jit::KernelSource& source, const network::ExchangeArguments& exchange, std::int64_t blocks,
                     const jit::Device& device, void* stream) {
  const auto grid = static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, 8LL * device.multiprocessors));
  jit::KernelCache::get()
      .get(source, jit::name_of_arch(device))
      .launch({grid, 1, 1}, threads, 0, stream, &exchange, sizeof exchange);
}

}  // namespace

jit::KernelSource print_tell() {
  return {.name = "network_tell",
          .entry = "spikeforge_network_tell",
          .text = fmt::format(R"(#include <spikeforge/cuda/network_exchange.cuh>
extern "C" __global__ void __launch_bounds__({})
spikeforge_network_tell(const __grid_constant__ spikeforge::network::ExchangeArguments args) {{
  spikeforge::network::tell(args);
}}
)",
                              threads)};
}

jit::KernelSource print_send(const NetworkLaunch& launch) {
  return {.name = "network_send",
          .entry = "spikeforge_network_send",
          .text = fmt::format(R"(#include <spikeforge/cuda/network_exchange.cuh>
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
                              event::print_type(matrix_of(launch)), threads)};
}

void tell(const network::ExchangeArguments& exchange, const jit::Device& device, void* stream) {
  constexpr std::int64_t of_a_thread = 16;
  launch_exchange(print_tell(), exchange, exchange.steps * exchange.network.size / (of_a_thread * threads) + 1, device,
                  stream);
}

void send(const NetworkLaunch& launch, const network::ExchangeArguments& exchange, const jit::Device& device,
          void* stream) {
  network::ExchangeArguments arguments = exchange;
  constexpr std::int64_t of_a_warp = 128;  // connections, which it has on their way at once
  const std::int64_t of_a_row = arguments.network.matrix.nnz / std::max<std::int64_t>(arguments.network.whole, 1);
  arguments.network.pieces = std::clamp<std::int64_t>((of_a_row + of_a_warp - 1) / of_a_warp, 1, 1024);
  launch_exchange(print_send(launch), arguments, 2LL * device.multiprocessors, device, stream);
}

}  // namespace spikeforge::kernels
