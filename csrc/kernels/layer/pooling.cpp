#include <spikeforge/jit/spec_table.h>
#include <spikeforge/kernels/layer/pooling.h>
#include <spikeforge/kernels/type_name.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace spikeforge::layers {
namespace {

enum class Function : int { forward, backward, backward_of_large_windows };

// What decides a kernel.
struct PoolSpec {
  Function function;
  int type, is_mean;
  int lanes, strip;
  Window down, across;

  bool operator==(const PoolSpec&) const = default;
};

jit::KernelSource print_source(const PoolSpec& spec) {
  constexpr const char* functions[] = {"forward", "backward", "backward_of_large_windows"};
  const auto window = [](const Window& w) {
    return fmt::format("{{{}, {}, {}, {}}}", w.size, w.stride, w.padding, w.dilation);
  };
  const char* const function = functions[static_cast<int>(spec.function)];
  const auto type = static_cast<DType>(spec.type);
  return {.name = fmt::format("pool_{}", function),
          .entry = "spikeforge_pool",
          .text = fmt::format(R"(#include <spikeforge/cuda/pooling.cuh>

using namespace spikeforge;

struct Shape {{
  static constexpr layers::Window down{}, across{};
  static constexpr int strip = {};
  static constexpr bool is_mean = {};
}};

extern "C" __global__ void __launch_bounds__({}) spikeforge_pool(
    const __grid_constant__ layers::PoolArguments args) {{
  layers::Pooling<{}, {}, {}, Shape>::{}(args);
}}
)",
                              window(spec.down), window(spec.across), spec.strip, spec.is_mean != 0, pool_threads,
                              cuda_name(type), cuda_name(compute_type(type)), spec.lanes, function)};
}

// A number that all addresses and counts of channels are multiples of.
int lanes_of(const PoolLaunch& call, int most) {
  const auto size = static_cast<std::uintptr_t>(size_of(call.type));
  const std::uintptr_t elements =
      reinterpret_cast<std::uintptr_t>(call.from) / size | reinterpret_cast<std::uintptr_t>(call.to) / size |
      reinterpret_cast<std::uintptr_t>(call.which) | static_cast<std::uintptr_t>(call.images.channels);
  int lanes = most;
  while (elements % static_cast<std::uintptr_t>(lanes) != 0) lanes /= 2;
  return lanes;
}

PoolSpec spec_of(const PoolLaunch& call) {
  const Window &down = call.pool.down, &across = call.pool.across;
  const int of_16_bytes = 16 / static_cast<int>(size_of(call.type));
  PoolSpec spec{Function::forward, static_cast<int>(call.type), call.pool.is_mean ? 1 : 0, 1, 1, down, across};
  // What a thread keeps in registers: places of a patch in the backward pass.
  constexpr int most_kept = 32, most_unrolled = 64;
  const int places = down.size * across.size, patch = down.stride * across.stride;
  if (call.pass == PoolPass::backward && (places > most_unrolled || patch > most_kept)) {
    spec.function = Function::backward_of_large_windows;
    spec.lanes = lanes_of(call, of_16_bytes);
    return spec;
  }
  const int kept = call.pass == PoolPass::backward ? patch : 2;
  if (call.pass == PoolPass::backward) spec.function = Function::backward;
  spec.lanes =
      lanes_of(call, std::min(of_16_bytes, static_cast<int>(std::bit_floor(static_cast<unsigned>(most_kept / kept)))));
  if (places <= most_unrolled) spec.strip = std::clamp(most_kept / (kept * spec.lanes * 2), 1, 4);
  return spec;
}

Divisor divisor_of(std::int64_t n) {
  const auto divisor = static_cast<unsigned>(n);
  const auto shift = static_cast<unsigned>(std::bit_width(divisor - 1));
  const std::uint64_t factor = ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - divisor)) / divisor + 1;
  return {divisor, static_cast<unsigned>(factor), shift};
}

std::int64_t in_parts(std::int64_t n, std::int64_t part) { return (n + part - 1) / part; }

}  // namespace

jit::KernelSource source_of(const PoolLaunch& call) { return print_source(spec_of(call)); }

std::vector<PoolPart> parts_of(const PoolLaunch& call) {
  const PoolSpec spec = spec_of(call);
  const Images& images = call.images;
  std::int64_t down = images.height, across = images.width;
  if (spec.function == Function::forward) {
    down = in_parts(images.out_height, spec.strip);
    across = images.out_width;
  } else if (spec.function == Function::backward) {
    down = in_parts(in_parts(images.height + spec.down.padding, spec.down.stride), spec.strip);
    across = in_parts(images.width + spec.across.padding, spec.across.stride);
  }
  const std::int64_t lanes = images.channels / spec.lanes;
  const std::int64_t of_an_image = down * across * lanes;
  const std::int64_t at_once = std::max<std::int64_t>(1, ((std::int64_t{1} << 31) - pool_threads) / of_an_image);
  const auto size = static_cast<std::int64_t>(size_of(call.type));
  const std::int64_t inside = images.height * images.width * images.channels;
  const std::int64_t outside = images.out_height * images.out_width * images.channels;
  const bool is_forward = call.pass == PoolPass::forward;
  std::vector<PoolPart> parts;
  for (std::int64_t first = 0; first < images.count; first += at_once) {
    const std::int64_t items = std::min(at_once, images.count - first) * of_an_image;
    parts.push_back(
        {.arguments = {.from = static_cast<const char*>(call.from) + first * size * (is_forward ? inside : outside),
                       .to = static_cast<char*>(call.to) + first * size * (is_forward ? outside : inside),
                       .which = call.which == nullptr ? nullptr : call.which + first * outside,
                       .height = static_cast<int>(images.height),
                       .width = static_cast<int>(images.width),
                       .out_height = static_cast<int>(images.out_height),
                       .out_width = static_cast<int>(images.out_width),
                       .channels = images.channels,
                       .items = static_cast<unsigned>(items),
                       .down = divisor_of(down),
                       .across = divisor_of(across),
                       .lanes = divisor_of(lanes),
                       .divisor = call.pool.divisor,
                       .counts_padding = call.pool.counts_padding},
         .blocks = static_cast<unsigned>(in_parts(items, pool_threads))});
  }
  return parts;
}

void launch(const PoolLaunch& call, const jit::Device& device, void* stream) {
  const jit::LoadedKernel& kernel = jit::SpecTable<PoolSpec>::of(device).get(spec_of(call), device);
  for (const PoolPart& part : parts_of(call))
    kernel.launch({part.blocks, 1, 1}, pool_threads, 0, stream, &part.arguments, sizeof part.arguments);
}

}  // namespace spikeforge::layers
