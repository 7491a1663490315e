// Every thread adds up the rows of active inputs over some columns of some vectors.
#include "csrc/cpu/event/kernels.h"
#include "csrc/kernels/event/note.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace spikeforge::ops::sparse {
namespace {

constexpr std::int64_t least_weights = 1 << 15;  // weights that are worth waking a thread
constexpr std::int64_t columns_at_once = 512;

std::vector<std::int64_t> active_inputs(const bool* x, std::int64_t in) {
  std::vector<std::int64_t> inputs;
  for (std::int64_t i = 0; i < in; ++i)
    if (x[i]) inputs.push_back(i);
  return inputs;
}

at::Tensor event_linear_cpu(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            bool graded) {
  check_linear(x, weight, bias, graded);
  at::Tensor y = at::empty(C10_AS_INTARRAYREF_SLOW(linear_sizes(x, weight)), weight.options());
  const std::int64_t in = weight.size(0);
  const std::int64_t out = weight.size(1);
  if (y.numel() == 0) return y;
  event::note_kernels([&](const jit::Device&) { return std::vector{gpu_linear(x, weight, graded)}; });
  const std::int64_t batches = y.numel() / out;
  const auto type = state_type(weight.scalar_type());
  const at::Tensor dense = weight.contiguous();
  const at::Tensor active = (is_packed(x) ? unpack(x, in) : x.gt(0)).contiguous();
  const at::Tensor values = graded ? x.to(type).contiguous() : at::Tensor();
  const at::Tensor offset = bias.has_value() ? bias->to(type).contiguous() : at::Tensor();

  std::vector<std::vector<std::int64_t>> of_vectors;
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    of_vectors.push_back(active_inputs(active.const_data_ptr<bool>() + b * in, in));
    rows += static_cast<std::int64_t>(of_vectors.back().size());
  }
  const std::int64_t tiles = (out + columns_at_once - 1) / columns_at_once;
  const std::int64_t grain = std::max<std::int64_t>(1, least_weights * batches * tiles / ((rows + batches) * out));
  auto* const to = static_cast<char*>(y.mutable_data_ptr());
  at::parallel_for(0, batches * tiles, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t item = first; item < last; ++item) {
      const std::int64_t b = item / tiles;
      const std::int64_t begin = item % tiles * columns_at_once;
      const auto& inputs = of_vectors[static_cast<std::size_t>(b)];
      cpu::event_kernels().linear({.type = dtype_of(weight.scalar_type()),
                                   .weight = dense.const_data_ptr(),
                                   .out = out,
                                   .inputs = inputs.data(),
                                   .count = static_cast<std::int64_t>(inputs.size()),
                                   .values = graded ? static_cast<const char*>(values.const_data_ptr()) +
                                                          b * in * static_cast<std::int64_t>(values.element_size())
                                                    : nullptr,
                                   .bias = offset.defined() ? offset.const_data_ptr() : nullptr,
                                   .begin = begin,
                                   .end = std::min(out, begin + columns_at_once),
                                   .y = to + b * out * static_cast<std::int64_t>(y.element_size())});
    }
  });
  return y;
}

SPIKEFORGE_KERNELS(CPU, library) { library.impl("event_linear", TORCH_FN(event_linear_cpu)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
