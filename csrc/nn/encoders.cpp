#include "csrc/nn/encoders.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

namespace spikeforge::nn {
namespace {

// Returns the type in which values are compared with random numbers and steps: half precision is not sufficient.
c10::ScalarType wide(const at::Tensor& x) { return c10::promoteTypes(x.scalar_type(), at::kFloat); }

}  // namespace

at::Tensor Encoder::encode(const at::Tensor& x, std::int64_t steps) {
  TORCH_CHECK_VALUE(steps >= 0, title(), ": steps must be 0 or more, but is ", steps);
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin(), steps);
  return forward(x.unsqueeze(0).expand(shape));
}

Tensors PoissonImpl::advance(at::TensorList inputs, std::int64_t steps) {
  const at::Tensor& x = inputs[0];
  at::Tensor drawn = at::empty_like(x, x.options().dtype(wide(x)), at::MemoryFormat::Contiguous);
  for (std::int64_t t = 0; t < steps; ++t) drawn.select(0, t).uniform_(0, 1, generator_);
  return {(drawn < x).to(x.scalar_type())};
}

Script PoissonImpl::script() const {
  TORCH_CHECK_NOT_IMPLEMENTED(!generator_, "a custom Generator cannot be written");
  return {.name = "Poisson",
          .forward =
              "drawn = torch.empty(x.size(), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)\n"
              "for row in drawn.unbind(0):\n"
              "  row.uniform_(0.0, 1.0)\n"
              "return (drawn < x).to(x.dtype)"};
}

at::Tensor PoissonImpl::own_state(std::size_t /*i*/) const { return generator_->get_state(); }

void PoissonImpl::set_own_state(std::size_t /*i*/, at::Tensor value) {
  if (value.defined()) generator_->set_state(value.cpu());
}

std::shared_ptr<Stateful> PoissonImpl::fresh() const {
  return std::make_shared<PoissonImpl>(generator_ ? std::optional(generator_->clone()) : std::nullopt);
}

LatencyImpl::LatencyImpl(std::int64_t steps) : steps_(steps) {
  TORCH_CHECK_VALUE(steps >= 1, "Latency: steps must be at least 1, but is ", steps);
}

Tensors LatencyImpl::advance(at::TensorList inputs, std::int64_t steps) {
  const at::Tensor& x = inputs[0];
  std::vector<std::int64_t> column(x.dim(), 1);
  column[0] = steps;
  const at::Tensor now = at::arange(t_, t_ + steps, x.options().dtype(at::kLong)).view(column);
  t_ += steps;
  return {(((1 - x.to(wide(x))) * (steps_ - 1)).round().to(at::kLong) == now).to(x.scalar_type())};
}

Script LatencyImpl::script() const {
  return {.name = "Latency",
          .states = {"t"},
          .forward =
              "first = self.t\n"
              "if first.size() == [0]:\n"
              "  first = torch.zeros([], dtype=torch.int64, device=x.device)\n"
              "column = [x.size(0)]\n"
              "for i in range(x.dim() - 1):\n"
              "  column.append(1)\n"
              "now = (first + torch.arange(x.size(0), dtype=torch.int64, device=x.device)).view(column)\n"
              "self.t = first + x.size(0)\n"
              "step = torch.round((1 - x.to(torch.promote_types(x.dtype, torch.float32))) * " +
              std::to_string(steps_ - 1) +
              ").to(torch.int64)\n"
              "return (step == now).to(x.dtype)"};
}

at::Tensor LatencyImpl::own_state(std::size_t /*i*/) const { return at::scalar_tensor(t_, at::kLong); }

void LatencyImpl::set_own_state(std::size_t /*i*/, at::Tensor value) {
  t_ = value.defined() ? value.item<std::int64_t>() : 0;
}

Tensors RepeatImpl::advance(at::TensorList inputs, std::int64_t /*steps*/) { return {inputs[0]}; }

}  // namespace spikeforge::nn
