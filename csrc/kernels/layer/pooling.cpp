#include "csrc/kernels/layer/pooling.h"
#include "csrc/jit/spec_table.h"
#include "csrc/kernels/layer/divisor.h"
#include "csrc/kernels/type_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <initializer_list>

namespace spikeforge::layers {
namespace {

enum class Function : int { forward, backward, forward_of_large_windows, backward_of_large_windows };

// The compile-time choices of a kernel; the names are those of cuda/layer/pooling.cuh.
struct PoolSpec {
  Function function;
  int type, is_mean, is_normalised;
  Window down, across;
  int lanes = 1, strip = 1, columns = 1, vector_in = 1, vector_out = 1;

  bool operator==(const PoolSpec&) const = default;
};

jit::KernelSource print_source(const PoolSpec& spec) {
  constexpr const char* functions[] = {"forward", "backward", "forward_of_large_windows", "backward_of_large_windows"};
  const auto window = [](const Window& w) {
    return fmt::format("{{{}, {}, {}, {}}}", w.size, w.stride, w.padding, w.dilation);
  };
  const char* const function = functions[static_cast<int>(spec.function)];
  const auto type = static_cast<DType>(spec.type);
  return {.name = fmt::format("pool_{}", function),
          .entry = "spikeforge_pool",
          .text = fmt::format(R"(#include <spikeforge/cuda/layer/pooling.cuh>

using namespace spikeforge;

struct Shape {{
  static constexpr layers::Window down{}, across{};
  static constexpr int strip = {}, columns = {};
  static constexpr int vector_in = {}, vector_out = {};
  static constexpr bool is_mean = {}, is_normalised = {};
}};

extern "C" __global__ void __launch_bounds__({}) spikeforge_pool(
    const __grid_constant__ layers::PoolArguments args) {{
  layers::Pooling<{}, {}, {}, Shape>::{}(args);
}}
)",
                              window(spec.down), window(spec.across), spec.strip, spec.columns, spec.vector_in,
                              spec.vector_out, spec.is_mean != 0, spec.is_normalised != 0, pool_threads,
                              cuda_name(type), cuda_name(compute_type(type)), spec.lanes, function)};
}

// Returns the largest power of two, at most `most`, that divides all numbers.
int common_power(int most, std::initializer_list<std::int64_t> numbers) {
  int power = most;
  while (std::ranges::any_of(numbers, [&](std::int64_t n) { return n % power != 0; })) power /= 2;
  return power;
}

PoolSpec spec_of(const PoolLaunch& call) {
  const Images& images = call.images;
  const auto size = static_cast<std::int64_t>(size_of(call.type));
  const bool is_forward = call.pass == PoolPass::forward;
  PoolSpec spec{.function = is_forward ? Function::forward : Function::backward,
                .type = static_cast<int>(call.type),
                .is_mean = call.pool.is_mean ? 1 : 0,
                .is_normalised = call.is_normalised() ? 1 : 0,
                .down = call.pool.down,
                .across = call.pool.across};
  // Addresses in elements.
  const auto from = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(call.from)) / size,
             to = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(call.to)) / size,
             beside = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(call.normalised.x)) / size,
             which = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(call.which));
  const int of_16_bytes = static_cast<int>(16 / size);
  const Window &down = spec.down, &across = spec.across;
  // Limits: numbers that a thread keeps in registers, and places whose loops are unrolled.
  constexpr int most_kept = 32, most_unrolled = 25;
  const std::int64_t patch = std::int64_t{down.stride} * across.stride;
  if (down.size * across.size > most_unrolled || (!is_forward && patch > most_kept)) {
    spec.function = is_forward ? Function::forward_of_large_windows : Function::backward_of_large_windows;
    spec.lanes = common_power(of_16_bytes, {images.channels, from, to, beside, which});
    return spec;
  }
  const int of_a_result = is_forward ? 2 : static_cast<int>(patch);
  const auto most_results = static_cast<int>(std::bit_floor(static_cast<unsigned>(most_kept / of_a_result)));
  spec.lanes = common_power(std::min(of_16_bytes, most_results), {images.channels, from, to, beside, which});
  if (images.channels == 1) {
    const std::int64_t x = is_forward ? from : to, y = is_forward ? to : from;
    spec.columns = std::min({most_results, 4, of_16_bytes});
    // Two accesses to the same memory sector are cheap for reads, and expensive for writes.
    if (!is_forward) {
      const int written_at_once = common_power(of_16_bytes, {images.width, x});
      spec.columns = std::clamp(written_at_once / across.stride, 1, spec.columns);
    }
    spec.vector_in = common_power(of_16_bytes, {spec.columns * across.stride, images.width, x, beside});
    spec.vector_out = common_power(of_16_bytes, {spec.columns, images.out_width, y, which});
  }
  // Only in the forward pass do results below each other share many of their reads.
  if (is_forward) spec.strip = std::clamp(most_kept / (of_a_result * spec.lanes * spec.columns * 2), 1, 4);
  return spec;
}

std::int64_t in_parts(std::int64_t n, std::int64_t part) { return (n + part - 1) / part; }

std::vector<PoolPart> parts_of(const PoolLaunch& call, const PoolSpec& spec) {
  const Images& images = call.images;
  std::int64_t down = images.height, across = images.width;
  if (spec.function == Function::forward) {
    down = in_parts(images.out_height, spec.strip);
    across = in_parts(images.out_width, spec.columns);
  } else if (spec.function == Function::forward_of_large_windows) {
    down = images.out_height;
    across = images.out_width;
  } else if (spec.function == Function::backward) {
    down = in_parts(images.height, spec.down.stride * spec.strip);
    across = in_parts(images.width, spec.across.stride * spec.columns);
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
                       .counts_padding = call.pool.counts_padding,
                       .weight = call.normalised.weight,
                       .x = call.normalised.x == nullptr
                                ? nullptr
                                : static_cast<const char*>(call.normalised.x) + first * size * inside,
                       .mean = call.normalised.mean,
                       .offset = call.normalised.offset,
                       .slope = call.normalised.slope,
                       .cycle = static_cast<unsigned>(call.normalised.cycle),
                       .first = static_cast<unsigned>(first % call.normalised.cycle)},
         .blocks = static_cast<unsigned>(in_parts(items, pool_threads))});
  }
  return parts;
}

}  // namespace

jit::KernelSource source_of(const PoolLaunch& call) { return print_source(spec_of(call)); }

std::vector<PoolPart> parts_of(const PoolLaunch& call) { return parts_of(call, spec_of(call)); }

void launch_pooling(const PoolLaunch& call, const jit::Device& device, void* stream) {
  const PoolSpec spec = spec_of(call);
  const jit::LoadedKernel& kernel = jit::SpecTable<PoolSpec>::of(device).get(spec, device);
  for (const PoolPart& part : parts_of(call, spec))
    kernel.launch({part.blocks, 1, 1}, pool_threads, 0, stream, &part.arguments, sizeof part.arguments);
}

}  // namespace spikeforge::layers
