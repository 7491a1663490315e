#include "csrc/kernels/layer/spike_bits.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/layer/arguments.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace spikeforge::layers {
namespace {

constexpr unsigned threads = 256;
constexpr std::int64_t accesses = 4;  // per thread, as in cuda/layer/spike_bits.cuh

struct BitsSpec {
  int pass, type, bits;
  int lanes;  // per access

  bool operator==(const BitsSpec&) const = default;
};

jit::KernelSource print_source(const BitsSpec& spec) {
  const char* const pass = spec.pass == static_cast<int>(BitsPass::pack) ? "pack" : "unpack";
  return {.name = fmt::format("{}_spikes", pass),
          .entry = "spikeforge_spike_bits",
          .text = fmt::format(R"(#include <spikeforge/cuda/layer/spike_bits.cuh>

using namespace spikeforge;

extern "C" __global__ void __launch_bounds__({}) spikeforge_spike_bits(
    const __grid_constant__ layers::BitsArguments args) {{
  layers::SpikeBits<{}, {}, {}, {}>::{}(args);
}}
)",
                              threads, cuda_name(static_cast<DType>(spec.type)),
                              cuda_name(compute_type(static_cast<DType>(spec.type))), spec.bits, spec.lanes, pass)};
}

BitsSpec spec_of(const BitsLaunch& call) {
  const bool is_packing = call.pass == BitsPass::pack;
  const auto numbers = reinterpret_cast<std::uintptr_t>(is_packing ? call.from : call.to);
  const auto bytes = reinterpret_cast<std::uintptr_t>(is_packing ? call.to : call.from);
  const std::size_t size = size_of(call.type), bits = static_cast<std::size_t>(call.bits);
  std::size_t lanes = 16 / size;
  while (numbers % (lanes * size) != 0 || bytes % std::max<std::size_t>(lanes * bits / 8, 1) != 0) lanes /= 2;
  return {static_cast<int>(call.pass), static_cast<int>(call.type), call.bits, static_cast<int>(lanes)};
}

}  // namespace

jit::KernelSource source_of(const BitsLaunch& call) { return print_source(spec_of(call)); }

void launch_spike_bits(const BitsLaunch& call, const jit::Device& device, void* stream) {
  const BitsSpec spec = spec_of(call);
  const std::int64_t of_a_block = threads * accesses * spec.lanes;
  const jit::LoadedKernel& kernel = jit::SpecTable<BitsSpec>::of(device).get(spec, device);
  const BitsArguments arguments{.from = call.from, .to = call.to, .valid = call.valid, .count = call.count};
  kernel.launch({static_cast<unsigned>((call.count + of_a_block - 1) / of_a_block), 1, 1}, threads, 0, stream,
                &arguments, sizeof arguments);
}

}  // namespace spikeforge::layers
