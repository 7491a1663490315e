// Mean and variance of channels: one pass over a tensor.
#include "csrc/cpu/layer/channel_statistics.h"
#include "csrc/jit/recorder.h"
#include "ops/common/checks.h"
#include "ops/common/layout.h"
#include "ops/common/library.h"
#include "ops/layer.h"
#include "ops/layer/batch_norm.h"
#include "ops/layer/moments.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/square.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
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

// The dimension counted from the front.
std::int64_t check(const at::Tensor& x, std::int64_t channel_dim) {
  const Leader leader{statistics_op, "x", x};
  TORCH_CHECK_TYPE(x.layout() == c10::kStrided, statistics_op, ": x must be a dense tensor, but its layout is ",
                   x.layout());
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

// Blocks of rows whose moments are combined in their order, whatever the number of threads.
constexpr std::int64_t most_blocks = 64;
constexpr std::int64_t least_block = 16384;  // elements

Statistics statistics_cpu(const at::Tensor& x, std::int64_t channel_dim) {
  const std::int64_t dim = check(x, channel_dim);
  Statistics statistics = empty_statistics(x, dim);
  const ByChannel by(x, dim);
  if (by.channels == 0) return statistics;
  if (jit::recorder() != nullptr) return moments(by, {forward_cpu, backward_cpu});  // as on a GPU
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
