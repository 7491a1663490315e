#include <spikeforge/ops/common/samples.h>

#include <ATen/ops/clamp.h>
#include <c10/util/Exception.h>

#include <limits>

namespace spikeforge::ops {
namespace {

// With dimensions of one element behind those that it has.
at::Tensor aligned(at::Tensor t, std::int64_t dims) {
  while (t.dim() < dims) t = t.unsqueeze(-1);
  return t;
}

// A length that is no int32 stays one that is refused.
at::Tensor as_int32(const at::Tensor& lengths) {
  if (lengths.scalar_type() != at::kLong) return lengths;
  using Limits = std::numeric_limits<std::int32_t>;
  return at::clamp(lengths, Limits::min(), Limits::max()).to(at::kInt);
}

}  // namespace

void set_samples(MultistepCall& call, const std::optional<at::Tensor>& lengths,
                 const std::optional<at::Tensor>& start) {
  if (!lengths.has_value() && !start.has_value()) return;
  const at::Tensor& x = call.inputs[0];
  const char* const op = call.cell->forward_op.c_str();
  TORCH_CHECK_VALUE(x.dim() >= 2, op, ": with lengths or start, ", call.cell->inputs[0],
                    " must be [T, B, *shape], with samples along dimension 1, but has shape ", x.sym_sizes());
  if (lengths.has_value()) {
    TORCH_CHECK_VALUE(lengths->dim() == 1 || lengths->dim() == x.dim() - 1, op, ": lengths must have shape [",
                      x.sym_size(1), "], one for each sample, but has ", lengths->sym_sizes());
    call.lengths = aligned(as_int32(*lengths), x.dim() - 1);
  }
  if (start.has_value()) {
    TORCH_CHECK_VALUE(start->dim() == 2 || start->dim() == x.dim(), op, ": start must have shape ",
                      x.sym_sizes().slice(0, 2), ", one for each step and sample, but has ", start->sym_sizes());
    call.start = aligned(*start, x.dim());
  }
}

}  // namespace spikeforge::ops
