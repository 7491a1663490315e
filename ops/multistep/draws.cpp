#include "ops/multistep/draws.h"

#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>

#include <limits>

namespace spikeforge::ops {
namespace {

void check_one_number(const MultistepCall& call, const char* name, const at::Tensor& t) {
  const char* const op = call.op_name();
  TORCH_CHECK_TYPE(t.scalar_type() == at::kLong, op, ": ", name, " must be int64, but is ", t.scalar_type());
  TORCH_CHECK_VALUE(t.dim() == 0, op, ": ", name, " must be a 0-dimensional tensor, but has shape ", t.sym_sizes());
  const at::Tensor& x = call.inputs[0];
  TORCH_CHECK_VALUE(t.is_cpu() || t.device() == x.device(), op, ": ", name, " must be on the CPU or on ", x.device(),
                    ", the device of ", call.cell->inputs[0], ", but is on ", t.device());
}

// Returns the address of the element on the device, or null with the value in `number` if the host can read it.
const std::int64_t* placed(const at::Tensor& t, std::int64_t& number) {
  if (!t.defined()) return nullptr;
  const auto* const data = t.const_data_ptr<std::int64_t>();
  if (!t.is_cpu()) return data;
  number = *data;
  return nullptr;
}

}  // namespace

void set_draws(MultistepCall& call, const std::optional<at::Tensor>& seed, const std::optional<at::Tensor>& offset) {
  if (!seed.has_value() && !offset.has_value()) return;
  TORCH_CHECK_VALUE(call.cell->draws, call.op_name(), ": ", seed.has_value() ? "seed" : "offset",
                    " is given, but the neuron draws no random numbers");
  call.seed = seed.value_or(at::Tensor());
  call.offset = offset.value_or(at::Tensor());
}

bool needs_seed(const MultistepCall& call) { return call.cell->draws && !call.seed.defined(); }

MultistepCall with_seed(MultistepCall call) {
  if (!needs_seed(call)) return call;
  call.seed = at::randint(std::numeric_limits<std::int64_t>::max(), /*size=*/{},
                          at::TensorOptions(at::kLong).device(call.inputs[0].device()));
  return call;
}

void check_draws(const MultistepCall& call) {
  if (!call.cell->draws) return;
  TORCH_CHECK_VALUE(call.seed.defined(), call.op_name(),
                    ": the neuron draws random numbers, so that it needs a seed here");
  check_one_number(call, "seed", call.seed);
  if (call.offset.defined()) check_one_number(call, "offset", call.offset);
}

DrawsView view_draws(const MultistepCall& call, const PlainLayout& layout) {
  const std::optional<Order<std::int64_t>> order = order_of(layout);
  TORCH_INTERNAL_ASSERT(order.has_value());
  DrawsView view{.fast = order->fast, .slow = order->slow};
  view.seed = placed(call.seed, view.seed_number);
  view.offset = placed(call.offset, view.offset_number);
  return view;
}

}  // namespace spikeforge::ops
