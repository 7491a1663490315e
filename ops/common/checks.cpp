#include "ops/common/checks.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace spikeforge::ops {
namespace {

// The maximum number of steps: kernels count steps, including a few that are prefetched, in 32 bits.
constexpr std::int64_t most_steps = std::int64_t{1} << 30;

bool is_host_scalar(const at::Tensor& param) { return param.dim() == 0 && param.is_cpu(); }

// True if the loops convert the type to the arithmetic of `state` without loss of precision.
bool is_at_most(c10::ScalarType type, c10::ScalarType state) {
  return is_supported(type) && is_supported(state) && c10::elementSize(type) <= c10::elementSize(state);
}

// Returns the expected value of a parameter, for the part of a message before "but is".
std::string expected(const CellParam& param, double number, DType arithmetic) {
  switch (param.legal) {
    case Legal::unchecked: break;
    case Legal::any: return "must be a number";
    case Legal::positive:
      if (std::isfinite(number) && number > 0)
        return std::string("must be finite and above 0 in ") + (arithmetic == DType::f64 ? "float64" : "float32") +
               ", and so must its reciprocal";
      return "must be finite and above 0";
    case Legal::fraction: return "must be in [0, 1]";
    case Legal::between: return c10::str("must be in [", param.least, ", ", param.most, "]");
  }
  return "";
}

std::string text_of(const CellParam& param, double number) {
  if (param.legal == Legal::between && std::isfinite(number)) return std::to_string(static_cast<std::int64_t>(number));
  return c10::str(number);
}

bool broadcasts(c10::SymIntArrayRef sizes, c10::SymIntArrayRef shape) {
  bool fits = sizes.size() == shape.size();
  for (std::size_t d = 0; fits && d < sizes.size(); ++d) fits = sizes[d] == 1 || sizes[d] == shape[d];
  return fits;
}

// Returns the index of element i of a contiguous tensor, such as "[3, 5]".
std::string index_of(std::int64_t i, at::IntArrayRef sizes) {
  std::vector<std::int64_t> index(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0; i /= sizes[d]) index[d] = i % sizes[d];
  return c10::str(at::IntArrayRef(index));
}

}  // namespace

bool is_supported(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16 || type == c10::ScalarType::Float ||
         type == c10::ScalarType::Double;
}

c10::ScalarType state_type(c10::ScalarType leader) {
  return c10::isReducedFloatingType(leader) ? c10::ScalarType::Float : leader;
}

void check_steps(const Leader& leader) {
  const auto& [op, name, x] = leader;
  TORCH_CHECK_VALUE(x.dim() >= 1, op, ": ", name, " must have shape [T, *shape], time first, but is 0-dimensional");
  TORCH_CHECK_VALUE(x.sym_size(0) <= most_steps, op, ": ", name, " has ", x.sym_size(0),
                    " steps; at most 2^30 are supported");
}

void check_leader(const Leader& leader) {
  const auto& [op, name, x] = leader;
  TORCH_CHECK_TYPE(is_supported(x.scalar_type()), op, ": ", name,
                   " must be float16, bfloat16, float32 or float64, but is ", x.scalar_type(), "; pass ", name,
                   ".to(torch.float32)");
  check_steps(leader);
}

void check_type(const Leader& leader, const char* name, const at::Tensor& t) {
  const c10::ScalarType type = leader.tensor.scalar_type();
  const c10::ScalarType state = state_type(type);
  check_dense(leader.op, name, t);
  TORCH_CHECK_TYPE(t.scalar_type() == type || t.scalar_type() == state, leader.op, ": ", name, " must be ", type,
                   state == type ? std::string() : std::string(" or ") + toString(state), " for a ", type, " ",
                   leader.name, ", but is ", t.scalar_type());
}

void check_device(const Leader& leader, const char* name, const at::Tensor& t) {
  TORCH_CHECK_VALUE(t.device() == leader.tensor.device(), leader.op, ": ", name, " must be on ", leader.tensor.device(),
                    ", the device of ", leader.name, ", but is on ", t.device());
}

void check_same_type(const Leader& leader, const char* name, const at::Tensor& t) {
  TORCH_CHECK_TYPE(t.scalar_type() == leader.tensor.scalar_type(), leader.op, ": ", name, " must be ",
                   leader.tensor.scalar_type(), ", the type of ", leader.name, ", but is ", t.scalar_type());
}

void check_floating(const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK_TYPE(is_supported(t.scalar_type()), op, ": ", name,
                   " must be float16, bfloat16, float32 or float64, but is ", t.scalar_type());
}

void check_dense(const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK_TYPE(t.layout() == c10::kStrided, op, ": ", name, " must be a dense tensor, but its layout is ",
                   t.layout());
}

void check_dense_floating(const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK_TYPE(t.layout() == c10::kStrided && is_supported(t.scalar_type()), op, ": ", name,
                   " must be a dense float16, bfloat16, float32 or float64 tensor, but is ", t.layout(), " ",
                   t.scalar_type());
}

void check_state(const Leader& leader, const char* name, const at::Tensor& state) {
  const c10::SymIntArrayRef shape = leader.tensor.sym_sizes().slice(1);
  TORCH_CHECK_VALUE(state.sym_sizes() == shape, leader.op, ": ", name, " must have shape ", shape, ", that of ",
                    leader.name, " without its time dimension, but has ", state.sym_sizes());
  check_type(leader, name, state);
  check_device(leader, name, state);
}

void check_param(const Leader& leader, const char* name, const at::Tensor& param) {
  const c10::SymIntArrayRef shape = leader.tensor.sym_sizes().slice(1);
  bool broadcasts = param.dim() <= static_cast<std::int64_t>(shape.size());
  for (std::int64_t d = 1; broadcasts && d <= param.dim(); ++d) {
    const c10::SymInt size = param.sym_size(param.dim() - d);
    broadcasts = size == 1 || size == shape[shape.size() - d];
  }
  TORCH_CHECK_VALUE(broadcasts, leader.op, ": ", name, " must broadcast against ", shape, ", the shape of ",
                    leader.name, " without its time dimension, but has shape ", param.sym_sizes());
  if (param.layout() != c10::kStrided || !is_at_most(param.scalar_type(), state_type(leader.tensor.scalar_type())))
    check_type(leader, name, param);
  if (!is_host_scalar(param)) check_device(leader, name, param);
}

void check_positive(const char* op, const char* name, double number) {
  TORCH_CHECK_VALUE(std::isfinite(number) && number > 0 && std::isfinite(1 / number), op, ": ", name,
                    " must be finite and above 0, and so must its reciprocal, but is ", number);
}

void check_number(const char* op, const CellParam& param, double number, DType arithmetic) {
  TORCH_CHECK_VALUE(!param.is_checked() || param.range(arithmetic).contains(number), op, ": ", param.name, " ",
                    expected(param, number, arithmetic), ", but is ", text_of(param, number));
}

void check_values(const char* op, const CellParam& param, const at::Tensor& values, DType arithmetic) {
  if (!param.is_checked()) return;
  const LegalRange range = param.range(arithmetic);
  const at::Tensor all = values.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* const numbers = all.const_data_ptr<double>();
  for (std::int64_t i = 0; i < all.numel(); ++i)
    TORCH_CHECK_VALUE(range.contains(numbers[i]), op, ": ", param.name, " ", expected(param, numbers[i], arithmetic),
                      ", but is ", text_of(param, numbers[i]),
                      all.numel() == 1 ? std::string() : " at " + index_of(i, all.sizes()));
}

void check_lengths_shape(const Leader& leader, const at::Tensor& lengths, c10::SymIntArrayRef given) {
  const c10::SymIntArrayRef sizes = leader.tensor.sym_sizes();
  TORCH_CHECK_VALUE(broadcasts(lengths.sym_sizes(), sizes.slice(1)), leader.op, ": lengths must have shape [",
                    sizes.size() > 1 ? sizes[1] : c10::SymInt(1),
                    "], one for each sample, or one that broadcasts against ", sizes.slice(1),
                    " with as many dimensions, but has ", given);
}

void check_start_shape(const Leader& leader, const at::Tensor& start, c10::SymIntArrayRef given) {
  const c10::SymIntArrayRef sizes = leader.tensor.sym_sizes();
  TORCH_CHECK_VALUE(broadcasts(start.sym_sizes(), sizes) && start.sym_size(0) == sizes[0], leader.op,
                    ": start must have shape ", sizes.slice(0, std::min<std::size_t>(sizes.size(), 2)),
                    ", one for each step and sample, or one that broadcasts against ", sizes,
                    " with as many dimensions and steps, but has ", given);
}

void check_samples(const Leader& leader, const at::Tensor& lengths, const at::Tensor& start) {
  if (lengths.defined()) {
    check_lengths_shape(leader, lengths, lengths.sym_sizes());
    TORCH_CHECK_TYPE(lengths.layout() == c10::kStrided && lengths.scalar_type() == at::kInt, leader.op,
                     ": lengths must be dense int32 or int64, but is ", lengths.scalar_type());
    check_device(leader, "lengths", lengths);
  }
  if (!start.defined()) return;
  check_start_shape(leader, start, start.sym_sizes());
  TORCH_CHECK_TYPE(start.layout() == c10::kStrided && start.scalar_type() == at::kBool, leader.op,
                   ": start must be dense bool, but is ", start.scalar_type());
  check_device(leader, "start", start);
}

void check_gradient(const Leader& leader, const char* prefix, const char* name, const at::Tensor& grad,
                    c10::SymIntArrayRef shape, c10::ScalarType type) {
  TORCH_CHECK_VALUE(grad.sym_sizes() == shape, leader.op, ": ", prefix, name, " must have shape ", shape, ", but has ",
                    grad.sym_sizes());
  TORCH_CHECK_TYPE(grad.scalar_type() == type, leader.op, ": ", prefix, name, " must be ", type, ", but is ",
                   grad.scalar_type());
  TORCH_CHECK_VALUE(grad.device() == leader.tensor.device(), leader.op, ": ", prefix, name, " must be on ",
                    leader.tensor.device(), ", the device of ", leader.name, ", but is on ", grad.device());
}

c10::Device numbered(c10::Device device) {
  if (device.is_cpu() || device.has_index() || !c10::impl::hasDeviceGuardImpl(device.type())) return device;
  return c10::impl::getDeviceGuardImpl(device.type())->getDevice();
}

}  // namespace spikeforge::ops
