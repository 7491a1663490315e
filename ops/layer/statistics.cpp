// Mean and variance of channels, in one pass over a tensor.
#include "csrc/cpu/layer/channel_statistics.h"
#include "csrc/jit/recorder.h"
#include "ops/common/checks.h"
#include "ops/common/layout.h"
#include "ops/common/library.h"
#include "ops/layer.h"
#include "ops/layer/batch_norm.h"
#include "ops/multistep/text_call.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#if defined(SPIKEFORGE_WITH_CUDA)
#include <c10/cuda/CUDAGuard.h>
#endif

namespace spikeforge::ops::layers {
namespace {

using Statistics = std::tuple<at::Tensor, at::Tensor>;

constexpr const char* statistics_op = "channel_statistics";

SPIKEFORGE_SCHEMAS(library) {
  library.def("channel_statistics(Tensor x, int channel_dim=2) -> (Tensor mean, Tensor var)");
}

// Returns the dimension counted from the front.
std::int64_t check(const at::Tensor& x, std::int64_t channel_dim) {
  const Leader leader{statistics_op, "x", x};
  check_dense(statistics_op, "x", x);
  check_leader(leader);
  const std::int64_t dim = dim_of_channels(leader, channel_dim);
  const auto numbers = x.sym_numel().maybe_as_int();
  TORCH_CHECK_VALUE(!numbers || *numbers > 0 || x.sym_size(dim) == 0, statistics_op,
                    ": x has no elements: its shape is ", x.sym_sizes());
  return dim;
}

Statistics empty_statistics(const at::Tensor& x, std::int64_t dim) {
  const auto options = x.options().dtype(state_type(x.scalar_type())).memory_format(std::nullopt);
  return {at::empty_symint({x.sym_size(dim)}, options), at::empty_symint({x.sym_size(dim)}, options)};
}

Statistics statistics_meta(const at::Tensor& x, std::int64_t channel_dim) {
  return empty_statistics(x, check(x, channel_dim));
}

// ---- on a GPU ----
//
// Mean and variance of channels by the multistep loop. Its gradients with respect to a parameter are sums over the
// neurons of a channel, so a stateless neuron with these gradients replaces a separate kernel.

// x as [rows, channels, inner] in memory, copied if it is stored in neither order.
struct ByChannel {
  at::Tensor x;
  std::int64_t rows, channels, inner;

  // `dim` is the channel dimension, counted from the front.
  ByChannel(const at::Tensor& given, std::int64_t dim) : channels(given.size(dim)) {
    const at::Tensor last = given.movedim(dim, -1);
    const bool is_last = last.is_contiguous();
    x = is_last ? last : given.contiguous();
    inner = 1;
    if (!is_last)
      for (std::int64_t d = dim + 1; d < given.dim(); ++d) inner *= given.size(d);
    rows = given.numel() / std::max<std::int64_t>(channels * inner, 1);
  }
};

struct Device {
  MultistepResults (*forward)(const MultistepCall&, bool save);
  Tensors (*backward)(const BackwardCall&);
};

constexpr std::string_view sums_text = R"(neuron sums_of_channels(x; ; first, second, a, b, c) {
  d = x - maximum(minimum(a, b), minimum(maximum(a, b), c))
  return first * d + second * (d * d)
}
)";
// The text of mean and variance. NaN is propagated.
constexpr std::string_view moments_text = R"(neuron moments(first, second; ; a, b, c, count) {
  m = first / count
  v = second / count - m * m
  return maximum(minimum(a, b), minimum(maximum(a, b), c)) + m, where(v < 0, 0, v)
}
)";

// Returns the number of rows per thread in flight.
std::int64_t steps_of(std::int64_t rows) {
  std::int64_t steps = 8;
  while (rows % steps != 0) --steps;
  return steps;
}

// Returns three values of each channel, [channels] each, read in place if they are adjacent in memory. Halves are
// converted here, rather than by every thread, with which 4x32x512x7x7 takes 37 passes instead of 32.
std::array<at::Tensor, 3> samples(const ByChannel& by) {
  const at::Tensor x = by.x.view({by.rows, by.channels, by.inner});
  const auto at_part = [&](std::int64_t row, std::int64_t place) { return x.select(0, row).select(1, place); };
  std::array<at::Tensor, 3> near{at_part(by.rows / 4, by.inner / 3), at_part(by.rows / 2, by.inner / 2),
                                 at_part(by.rows * 3 / 4, by.inner * 2 / 3)};
  if (by.inner == 1 && x.scalar_type() == state_type(x.scalar_type())) return near;
  const at::Tensor together = at::stack(near).to(state_type(x.scalar_type()));
  for (std::size_t i = 0; i < near.size(); ++i) near[i] = together.select(0, static_cast<std::int64_t>(i));
  return near;
}

// Returns the mean and the biased variance, [channels]. One pass over x sums differences from a value near the
// channel's mean: the median of three distant values, so that an outlier is not chosen.
std::tuple<at::Tensor, at::Tensor> moments(const ByChannel& by, const Device& device) {
  const std::int64_t steps = steps_of(by.rows);
  const std::array<at::Tensor, 1> x{by.x.view({steps, by.rows / steps, by.channels, by.inner})};
  const std::array<at::Tensor, 3> near = samples(by);
  const auto options = by.x.options().dtype(state_type(by.x.scalar_type())).memory_format(std::nullopt);
  std::array<at::Tensor, 5> params;
  for (std::size_t i = 0; i < near.size(); ++i) params[2 + i] = near[i].unsqueeze(1);
  params[0] = params[1] = params[2];  // their values are irrelevant

  const auto sums_cell = cell_of(sums_text);
  BackwardCall sums;
  sums.cell = sums_cell.get();
  sums.inputs = x;
  sums.params = params;
  const at::Tensor one = at::ones({}, x[0].options()).expand(x[0].sizes());
  sums.grad_outputs = one;
  const std::int64_t length = sums_cell->checkpoint_length(dtype_of(x[0].scalar_type()));
  sums.checkpoints = at::empty({(steps - 1) / length, 0, by.rows / steps, by.channels, by.inner}, options);
  sums.needs_grad = {false, true, true, false, false, false};
  Tensors found = device.backward(sums);

  for (at::Tensor& sum : found) sum = sum.view({1, by.channels});
  const auto moments_cell = cell_of(moments_text);
  const std::array<at::Tensor, 4> of_moments{near[0], near[1], near[2]};
  const std::array<double, 4> count{0, 0, 0, static_cast<double>(by.rows * by.inner)};
  MultistepCall call;
  call.cell = moments_cell.get();
  call.inputs = found;
  call.params = of_moments;
  call.numbers = count;
  const MultistepResults results = device.forward(call, /*save=*/false);
  return {results.outputs[0].select(0, 0), results.outputs[1].select(0, 0)};
}

// ---- on a CPU ----

// The maximum number of blocks of rows. Their moments are combined in order, for any number of threads.
constexpr std::int64_t most_blocks = 64;
constexpr std::int64_t least_block = 16384;  // elements

Statistics statistics_cpu(const at::Tensor& x, std::int64_t channel_dim) {
  const std::int64_t dim = check(x, channel_dim);
  Statistics statistics = empty_statistics(x, dim);
  const ByChannel by(x, dim);
  if (by.channels == 0) return statistics;
  if (jit::recorder() != nullptr) return moments(by, {forward_cpu, backward_cpu});  // records the kernels of a GPU
  const std::int64_t blocks =
      std::clamp<std::int64_t>(by.rows * by.channels * by.inner / least_block, 1, std::min(most_blocks, by.rows));
  const auto begin_of = [&](std::int64_t block) { return block * by.rows / blocks; };
  const DType type = dtype_of(x.scalar_type());
  const auto* const data = static_cast<const char*>(by.x.const_data_ptr());
  const auto row_bytes = by.channels * by.inner * static_cast<std::int64_t>(size_of(type));
  std::vector<cpu::Moments> moments(static_cast<std::size_t>(blocks * by.channels));
  at::parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b)
      cpu::channel_statistics().moments(data + begin_of(b) * row_bytes, type, begin_of(b + 1) - begin_of(b),
                                        by.channels, by.inner, moments.data() + b * by.channels);
  });

  auto& [mean, var] = statistics;
  const auto store = [&](auto* means, auto* vars) {
    for (std::int64_t c = 0; c < by.channels; ++c) {
      cpu::Moments all{0, 0};
      for (std::int64_t b = 0; b < blocks; ++b)
        all = cpu::joined(all, static_cast<double>(begin_of(b) * by.inner),
                          moments[static_cast<std::size_t>(b * by.channels + c)],
                          static_cast<double>((begin_of(b + 1) - begin_of(b)) * by.inner));
      means[c] = static_cast<std::decay_t<decltype(means[c])>>(all.mean);
      vars[c] = static_cast<std::decay_t<decltype(vars[c])>>(all.squares / static_cast<double>(by.rows * by.inner));
    }
  };
  mean.scalar_type() == c10::ScalarType::Double ? store(mean.data_ptr<double>(), var.data_ptr<double>())
                                                : store(mean.data_ptr<float>(), var.data_ptr<float>());
  return statistics;
}

#if defined(SPIKEFORGE_WITH_CUDA)
Statistics statistics_cuda(const at::Tensor& x, std::int64_t channel_dim) {
  const std::int64_t dim = check(x, channel_dim);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  const ByChannel by(x, dim);
  return by.channels == 0 ? empty_statistics(x, dim) : moments(by, {forward_cuda, backward_cuda});
}
#endif

using ChannelStatistics = Statistics(const at::Tensor&, std::int64_t);

SPIKEFORGE_KERNELS(CPU, library) { library.impl(statistics_op, TORCH_FN(statistics_cpu)); }
SPIKEFORGE_KERNELS(Meta, library) { library.impl(statistics_op, TORCH_FN(statistics_meta)); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { library.impl(statistics_op, TORCH_FN(statistics_cuda)); }
#endif
SPIKEFORGE_KERNELS(FuncTorchBatched, library) { library.impl(statistics_op, TORCH_FN(statistics_in_torch)); }

}  // namespace

std::tuple<at::Tensor, at::Tensor> statistics_in_torch(const at::Tensor& given, std::int64_t channel_dim) {
  const std::int64_t dim = check(given, channel_dim);
  const at::Tensor x = given.to(state_type(given.scalar_type())).movedim(dim, 0).flatten(1);
  const at::Tensor mean = x.mean(1);
  return {mean, (x - mean.unsqueeze(1)).square().mean(1)};
}

std::pair<at::Tensor, at::Tensor> call_channel_statistics(const at::Tensor& x, std::int64_t channel_dim) {
  static const auto handle = find_operator<ChannelStatistics>("spikeforge::channel_statistics");
  auto [mean, var] = handle.call(x, channel_dim);
  return {std::move(mean), std::move(var)};
}

std::pair<at::Tensor, at::Tensor> statistics_of_input(const at::Tensor& x, std::int64_t channel_dim) {
  const auto numbers = x.sym_numel().maybe_as_int();
  if (!numbers || *numbers > 0) return call_channel_statistics(x, channel_dim);
  const auto options = x.options().dtype(state_type(x.scalar_type())).memory_format(std::nullopt);
  return {at::zeros_symint({x.sym_size(channel_dim)}, options), at::ones_symint({x.sym_size(channel_dim)}, options)};
}

}  // namespace spikeforge::ops::layers

namespace spikeforge {

std::tuple<at::Tensor, at::Tensor> channel_statistics(const at::Tensor& x, std::int64_t channel_dim) {
  return ops::layers::call_channel_statistics(x, channel_dim);
}

}  // namespace spikeforge
