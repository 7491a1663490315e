#include "ops/layer/moments.h"
#include "ops/common/checks.h"
#include "ops/multistep/text_call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <array>
#include <string_view>

namespace spikeforge::ops::layers {
namespace {

constexpr std::string_view sums_text = R"(neuron sums_of_channels(x; ; first, second, a, b, c) {
  d = x - maximum(minimum(a, b), minimum(maximum(a, b), c))
  return first * d + second * (d * d)
}
)";
// NaN stays NaN.
constexpr std::string_view moments_text = R"(neuron moments(first, second; ; a, b, c, count) {
  m = first / count
  v = second / count - m * m
  return maximum(minimum(a, b), minimum(maximum(a, b), c)) + m, where(v < 0, 0, v)
}
)";

// Rows of a thread in flight.
std::int64_t steps_of(std::int64_t rows) {
  std::int64_t steps = 8;
  while (rows % steps != 0) --steps;
  return steps;
}

// Three of each channel, [channels] each: where they are neighbours in memory, they are read in place. Halves are
// converted first, which every thread would do else: 4x32x512x7x7 then takes 37 passes in the place of 32.
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

}  // namespace

std::tuple<at::Tensor, at::Tensor> moments(const ByChannel& by, const Device& device) {
  const std::int64_t steps = steps_of(by.rows);
  const std::array<at::Tensor, 1> x{by.x.view({steps, by.rows / steps, by.channels, by.inner})};
  const std::array<at::Tensor, 3> near = samples(by);
  const auto options = by.x.options().dtype(state_type(by.x.scalar_type())).memory_format(std::nullopt);
  std::array<at::Tensor, 5> params;
  for (std::size_t i = 0; i < near.size(); ++i) params[2 + i] = near[i].unsqueeze(1);
  params[0] = params[1] = params[2];  // their values are of no account

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

}  // namespace spikeforge::ops::layers
