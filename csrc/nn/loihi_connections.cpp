#include "csrc/nn/internal/loihi_call.h"
#include "csrc/nn/loihi.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <ostream>

namespace spikeforge::nn {

LoihiConnection::LoihiConnection(const char* op, std::int64_t slots, Numbers numbers,
                                 const LoihiConnectionOptions& call)
    : op_(op), slots_(slots), numbers_(std::move(numbers)) {
  numbers_.emplace_back("weight_exp", call.weight_exp);
  numbers_.emplace_back("num_message_bits", call.num_message_bits);
}

at::Tensor LoihiConnection::register_copy(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), title(), ": ", name, " is an undefined tensor");
  tensors_.emplace_back(name);
  return register_buffer(name, tensor.detach().clone());
}

void LoihiConnection::finish(std::int64_t in, bool persistent_state) {
  // No steps: the operator checks its arguments, and that is all.
  const at::Tensor nothing = at::zeros({0, in}, named_buffers()[tensors_[0]].options().dtype(at::kInt));
  call_as(title(), [&] { return send(nothing, {}); });
  if (persistent_state && slots_ > 0) make_persistent("buffer");
}

std::vector<std::int64_t> LoihiConnection::buffer_shape(const at::Tensor& x) const {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.front() = slots_;
  shape.back() = out();
  return shape;
}

Tensors LoihiConnection::at_rest(at::TensorList inputs) {
  if (slots_ == 0) return advance(inputs, 1);
  std::vector<std::int64_t> shape = buffer_shape(inputs[0]);
  shape.front() = 1;
  return {at::zeros(shape, inputs[0].options())};
}

void LoihiConnection::set_own_state(std::size_t /*i*/, at::Tensor value) {
  TORCH_CHECK_TYPE(!value.defined() || value.scalar_type() == at::kInt, title(),
                   ": the state buffer must be int32, but is ", value.scalar_type());
  TORCH_CHECK_VALUE(!value.defined() || (value.dim() >= 2 && value.size(0) == slots_ && value.size(-1) == out()),
                    title(), ": the state buffer must be [", slots_, ", *batch, ", out(), "], but is ", value.sizes());
  buffer_ = std::move(value);
}

Tensors LoihiConnection::advance(at::TensorList inputs, std::int64_t steps) {
  TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].defined() && inputs[0].dim() >= 2 && inputs[0].size(0) == steps,
                    title(), ": takes one input, [T, *batch, in]");
  const at::Tensor& x = inputs[0];
  TORCH_CHECK_TYPE(x.scalar_type() == at::kInt, title(), ": x must be int32, as the weights are, but is ",
                   x.scalar_type(), "; pass x.to(torch.int32)");
  if (buffer_.defined()) {
    const std::vector<std::int64_t> shape = buffer_shape(x);
    TORCH_CHECK_VALUE(buffer_.sizes() == shape, title(), ": the state buffer has shape ", buffer_.sizes(),
                      ", but this input's is ", at::IntArrayRef(shape), "; call reset() to restart");
    TORCH_CHECK_VALUE(buffer_.device() == x.device(), title(), ": the state buffer is on ", buffer_.device(),
                      ", but the input is on ", x.device(), "; call reset() to restart");
  }
  Arrivals arrivals = call_as(title(), [&] { return send(x, buffer_); });
  if (slots_ > 0) buffer_ = std::move(arrivals.buffer);
  return {std::move(arrivals.y)};
}

Script LoihiConnection::script() const {
  Script result{.name = kind(), .states = state_names()};
  std::string arguments = "x";
  for (const std::string& tensor : tensors_) arguments += ", " + script::member(tensor);
  if (slots_ > 0) {
    result.forward = "buffer: Optional[Tensor] = self.buffer\nif self.buffer.size() == [0]:\n  buffer = None\n";
    arguments += ", buffer";
  }
  for (const auto& [name, number] : numbers_) arguments += std::string(", ") + name + "=" + script::number(number);
  result.forward += std::string(slots_ > 0 ? "y, self.buffer" : "y, nothing") + " = torch.ops.spikeforge." + op_ + "(" +
                    arguments + ")\nreturn y";
  return result;
}

void LoihiConnection::pretty_print(std::ostream& stream) const {
  const auto buffers = named_buffers();
  const char* before = "(";
  stream << kind();
  for (const std::string& tensor : tensors_) {
    stream << before << tensor << '=' << buffers[tensor].sizes();
    before = ", ";
  }
  for (const auto& [name, number] : numbers_) stream << before << name << '=' << number;
  stream << ')';
}

namespace {

// How many inputs a matrix takes; the operator refuses what is none.
std::int64_t columns_of(const at::Tensor& matrix) { return matrix.dim() == 2 ? matrix.size(1) : 1; }

}  // namespace

LoihiDenseImpl::LoihiDenseImpl(LoihiDenseOptions options)
    : LoihiConnection("loihi_dense", options.call().delay, {{"delay", options.call().delay}}, options.call()),
      options_(std::move(options)) {
  weight = register_copy("weight", options_.weight);
  finish(columns_of(weight), options_.persistent_state());
}

Arrivals LoihiDenseImpl::send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const {
  return loihi_dense(x, weight, buffer, options_.call());
}

LoihiSparseImpl::LoihiSparseImpl(LoihiSparseOptions options)
    : LoihiConnection("loihi_sparse", options.call().delay, {{"delay", options.call().delay}}, options.call()),
      options_(std::move(options)) {
  crow_indices = register_copy("crow_indices", options_.crow_indices);
  col_indices = register_copy("col_indices", options_.col_indices);
  values = register_copy("values", options_.values);
  // The number of inputs is that of each call's x; this is the minimum.
  const std::int64_t last = col_indices.numel() == 0 ? 0 : col_indices.max().item().toLong();
  finish(std::max<std::int64_t>(last, 0) + 1, options_.persistent_state());
}

Arrivals LoihiSparseImpl::send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const {
  return loihi_sparse(x, crow_indices, col_indices, values, buffer, options_.call());
}

LoihiDelayDenseImpl::LoihiDelayDenseImpl(LoihiDelayDenseOptions options)
    : LoihiConnection("loihi_delay_dense", options.max_delay + 1, {{"max_delay", options.max_delay}}, options.call()),
      options_(std::move(options)) {
  weight = register_copy("weight", options_.weight);
  delays = register_copy("delays", options_.delays);
  finish(columns_of(weight), options_.persistent_state());
}

Arrivals LoihiDelayDenseImpl::send(const at::Tensor& x, const std::optional<at::Tensor>& buffer) const {
  return loihi_delay_dense(x, weight, delays, options_.max_delay, buffer, options_.call());
}

}  // namespace spikeforge::nn
