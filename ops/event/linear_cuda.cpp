#include "csrc/jit/spec_table.h"
#include "ops/common/library.h"
#include "ops/common/on_stream.h"
#include "ops/event/linear.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace spikeforge::ops::sparse {
namespace {

constexpr std::int64_t linear_block = 256;
constexpr std::int64_t most_grid_z = 65535;
constexpr std::int64_t linear_blocks_a_multiprocessor = 4;  // that fewer columns are split for

at::Tensor event_linear_cuda(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             bool graded) {
  check_linear(x, weight, bias, graded);
  const c10::cuda::OptionalCUDAGuard guard(x.device());
  at::Tensor y = at::empty(C10_AS_INTARRAYREF_SLOW(linear_sizes(x, weight)), weight.options());
  if (y.numel() == 0) return y;
  const at::Tensor dense_x = x.contiguous();
  const at::Tensor dense_weight = weight.contiguous();
  const at::Tensor dense_bias = bias.has_value() ? bias->contiguous() : at::Tensor();
  const std::int64_t in = weight.size(0);
  const std::int64_t out = weight.size(1);
  const std::int64_t batches = y.numel() / out;

  const jit::Device& device = gpu_of(x);
  const event::KernelSpec spec = gpu_linear(x, weight, graded);
  const std::int64_t tiles = (out + linear_block - 1) / linear_block;
  const std::int64_t pieces = std::max<std::int64_t>(1, (in + event::inputs_at_once - 1) / event::inputs_at_once);
  const std::int64_t splits =
      std::clamp<std::int64_t>(linear_blocks_a_multiprocessor * device.multiprocessors / (tiles * batches), 1, pieces);
  const at::Tensor parts =
      splits > 1 ? at::empty({splits, batches, out}, weight.options().dtype(state_type(weight.scalar_type())))
                 : at::Tensor();
  event::LinearArguments args{.x = dense_x.const_data_ptr(),
                              .weight = dense_weight.const_data_ptr(),
                              .bias = dense_bias.defined() ? dense_bias.const_data_ptr() : nullptr,
                              .y = y.mutable_data_ptr(),
                              .parts = parts.defined() ? parts.mutable_data_ptr() : nullptr,
                              .in = in,
                              .out = out,
                              .words = (in + 31) / 32,
                              .batches = batches,
                              .first_batch = 0};
  const jit::LoadedKernel& kernel = jit::SpecTable<event::KernelSpec>::of(device).get(spec, device);
  for (; args.first_batch < batches; args.first_batch += most_grid_z)
    kernel.launch({static_cast<unsigned>(tiles), static_cast<unsigned>(splits),
                   static_cast<unsigned>(std::min<std::int64_t>(most_grid_z, batches - args.first_batch))},
                  linear_block, 0, stream_of(x), &args, sizeof args);
  if (!parts.defined()) return y;
  at::Tensor sum = parts.sum(0);
  if (dense_bias.defined()) sum = sum.add(dense_bias);
  return sum.to(weight.scalar_type()).view(y.sizes());
}

SPIKEFORGE_KERNELS(CUDA, library) { library.impl("event_linear", TORCH_FN(event_linear_cuda)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
