#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/common/layout.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <string>

namespace spikeforge::ops {
namespace {

// Kernels count steps, and look a few ahead, in 32 bits.
constexpr std::int64_t most_steps = std::int64_t{1} << 30;

bool is_host_scalar(const at::Tensor& param) { return param.dim() == 0 && param.is_cpu(); }

}  // namespace

bool is_supported(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16 || type == c10::ScalarType::Float ||
         type == c10::ScalarType::Double;
}

c10::ScalarType state_type(c10::ScalarType leader) { return scalar_type_of(compute_type(dtype_of(leader))); }

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
  TORCH_CHECK_TYPE(t.layout() == c10::kStrided, leader.op, ": ", name, " must be a dense tensor, but its layout is ",
                   t.layout());
  TORCH_CHECK_TYPE(t.scalar_type() == type || t.scalar_type() == state, leader.op, ": ", name, " must be ", type,
                   state == type ? std::string() : std::string(" or ") + toString(state), " beside a ", type, " ",
                   leader.name, ", but is ", t.scalar_type());
}

void check_device(const Leader& leader, const char* name, const at::Tensor& t) {
  TORCH_CHECK_VALUE(t.device() == leader.tensor.device(), leader.op, ": ", name, " must be on ", leader.tensor.device(),
                    ", the device of ", leader.name, ", but is on ", t.device());
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
  check_type(leader, name, param);
  if (!is_host_scalar(param)) check_device(leader, name, param);
}

void check_positive(const char* op, const char* name, double number) {
  TORCH_CHECK_VALUE(std::isfinite(number) && number > 0, op, ": ", name, " must be finite and above 0, but is ",
                    number);
}

void check_number(const char* op, const CellParam& param, double number) {
  switch (param.legal) {
    case Legal::any:
      return;
    case Legal::positive:
      return check_positive(op, param.name.c_str(), number);
    case Legal::fraction:
      TORCH_CHECK_VALUE(number >= 0 && number <= 1, op, ": ", param.name, " must lie in [0, 1], but is ", number);
      return;
    case Legal::between:
      TORCH_CHECK_VALUE(static_cast<double>(param.least) <= number && number <= static_cast<double>(param.most), op,
                        ": ", param.name, " must lie in [", param.least, ", ", param.most, "], but is ",
                        static_cast<std::int64_t>(number));
      return;
  }
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

}  // namespace spikeforge::ops
