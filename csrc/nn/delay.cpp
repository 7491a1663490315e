#include "csrc/nn/delay.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <ostream>

namespace spikeforge::nn {

DelayImpl::DelayImpl(std::int64_t steps) : DelayImpl(at::scalar_tensor(steps, at::kLong)) {}

DelayImpl::DelayImpl(const at::Tensor& steps) {
  TORCH_CHECK_TYPE(steps.defined() && at::isIntegralType(steps.scalar_type(), /*includeBool=*/false),
                   "Delay: steps must be whole numbers, but are ",
                   steps.defined() ? c10::toString(steps.scalar_type()) : "undefined");
  steps_ = steps.detach().to(at::kCPU, at::kLong).clone();
  longest_ = steps_.numel() == 0 ? 0 : steps_.max().item<std::int64_t>();
  const std::int64_t shortest = steps_.numel() == 0 ? 0 : steps_.min().item<std::int64_t>();
  TORCH_CHECK_VALUE(shortest >= 0, "Delay: steps must be 0 or more, but one is ", shortest);
  is_uniform_ = shortest == longest_;
}

void DelayImpl::set_own_state(std::size_t /*i*/, at::Tensor value) {
  TORCH_CHECK_VALUE(!value.defined() || (value.dim() >= 1 && value.size(0) == longest_), title(),
                    ": the state x must be [", longest_, ", *shape]");
  past_ = std::move(value);
}

Tensors DelayImpl::at_rest(at::TensorList inputs) {
  return {at::where(steps_.to(inputs[0].device()) == 0, inputs[0], at::scalar_tensor(0, inputs[0].options()))};
}

Tensors DelayImpl::advance(at::TensorList inputs, std::int64_t steps) {
  TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].dim() >= 1, title(), ": takes one input, [T, *shape]");
  const at::Tensor& x = inputs[0];
  TORCH_CHECK_VALUE(x.dim() - 1 >= steps_.dim(), title(), ": there is a delay for each of ", steps_.sizes(),
                    ", but a step of the input has ", x.sizes().slice(1));
  if (longest_ == 0) return {x};
  if (!past_.defined()) {
    auto shape = x.sizes().vec();
    shape[0] = longest_;
    past_ = at::zeros(shape, x.options());
  }
  TORCH_CHECK_VALUE(past_.sizes().slice(1) == x.sizes().slice(1) && past_.device() == x.device(), title(),
                    ": the state x has shape ", past_.sizes().slice(1), " on ", past_.device(),
                    ", but a step of the input has ", x.sizes().slice(1), " on ", x.device(),
                    "; call reset() to restart");
  const at::Tensor all = at::cat({past_.to(x.scalar_type()), x});
  past_ = all.narrow(0, steps, longest_).clone();
  if (is_uniform_) return {all.narrow(0, 0, steps)};
  std::vector<std::int64_t> time(x.dim(), 1);
  time[0] = steps;
  const at::Tensor delays = steps_.to(x.device());
  const at::Tensor rows = at::arange(longest_, longest_ + steps, delays.options()).view(time) - delays;
  return {at::gather(all, 0, rows.expand(x.sizes()))};
}

Script DelayImpl::script() const {
  Script result{.name = "Delay"};
  const std::string longest = script::number(longest_), rank = script::number(steps_.dim());
  result.forward = "assert x.dim() - 1 >= " + rank + ", \"Delay: there is a delay for each neuron, of " + rank +
                   " dimensions, but a step of the input has fewer\"\n";
  if (longest_ == 0) {
    result.forward += "return x";
    result.at_rest = "return x";
    return result;
  }
  result.states = {"x"};
  result.forward +=
      "past = self.x\n"
      "if past.size() == [0]:\n"
      "  past = x.new_zeros([" +
      longest +
      "] + x.size()[1:])\n"
      "assert past.size()[1:] == x.size()[1:], \"Delay: the state x has another shape than a step of the input; call "
      "reset() to restart\"\n"
      "both = torch.cat([past.to(x.dtype), x])\n"
      "self.x = both.narrow(0, x.size(0), " +
      longest + ").clone()\n";
  if (is_uniform_) {
    result.forward += "return both.narrow(0, 0, x.size(0))";
    return result;
  }
  result.tensors = {{"steps", steps_}};
  result.at_rest = "return torch.where(self.steps.to(x.device) == 0, x, torch.zeros_like(x))";
  result.forward +=
      "delays = self.steps.to(x.device)\n"
      "rows = torch.arange(" +
      longest + ", " + longest +
      " + x.size(0), dtype=delays.dtype, device=x.device).view([x.size(0)] + [1] * (x.dim() - 1)) - delays\n"
      "return torch.gather(both, 0, rows.expand(x.size()))";
  return result;
}

void DelayImpl::pretty_print(std::ostream& stream) const {
  stream << "Delay(steps=";
  if (is_uniform_)
    stream << longest_ << ')';
  else
    stream << steps_.sizes() << ", up to " << longest_ << ')';
}

}  // namespace spikeforge::nn
