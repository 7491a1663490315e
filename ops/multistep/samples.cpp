#include "ops/multistep/samples.h"
#include "ops/common/checks.h"

#include <ATen/ops/clamp.h>
#include <c10/util/Exception.h>

#include <limits>

namespace spikeforge::ops {
namespace {

// Appends dimensions of one element.
at::Tensor aligned(at::Tensor t, std::int64_t dims) {
  while (t.dim() < dims) t = t.unsqueeze(-1);
  return t;
}

// True if its values can be read immediately: not on a GPU, nor while a graph is traced.
bool has_numbers(const at::Tensor& t) {
  constexpr c10::DispatchKeySet wrappers{c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                         c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper};
  return t.is_cpu() && !t.key_set().has_any(wrappers);
}

// Converts lengths to int32. Values out of range raise an error, or stay illegal after the conversion.
at::Tensor as_int32(const MultistepCall& call, const at::Tensor& lengths) {
  if (lengths.scalar_type() != at::kLong || lengths.layout() != c10::kStrided) return lengths;
  const auto steps = call.inputs[0].sym_size(0).maybe_as_int();
  if (steps && has_numbers(lengths)) {
    check_lengths(call, lengths, *steps);
    return lengths.to(at::kInt);
  }
  using Limits = std::numeric_limits<std::int32_t>;
  return at::clamp(lengths, Limits::min(), Limits::max()).to(at::kInt);
}

}  // namespace

void set_samples(MultistepCall& call, const std::optional<at::Tensor>& lengths,
                 const std::optional<at::Tensor>& start) {
  if (!lengths.has_value() && !start.has_value()) return;
  const at::Tensor& x = call.inputs[0];
  const char* const op = call.op_name();
  const Leader leader{op, call.cell->inputs[0].c_str(), x};
  TORCH_CHECK_VALUE(x.dim() >= 2, op, ": with lengths or start, ", call.cell->inputs[0],
                    " must be [T, B, *shape], with samples along dimension 1, but has shape ", x.sym_sizes());
  if (lengths.has_value()) {
    TORCH_CHECK_VALUE(lengths->dim() == 1 || lengths->dim() == x.dim() - 1, op, ": lengths must have shape [",
                      x.sym_size(1), "], one for each sample, but has ", lengths->sym_sizes());
    check_lengths_shape(leader, aligned(*lengths, x.dim() - 1), lengths->sym_sizes());
    call.lengths = aligned(as_int32(call, *lengths), x.dim() - 1);
  }
  if (start.has_value()) {
    TORCH_CHECK_VALUE(start->dim() == 2 || start->dim() == x.dim(), op, ": start must have shape ",
                      x.sym_sizes().slice(0, 2), ", one for each step and sample, but has ", start->sym_sizes());
    call.start = aligned(*start, x.dim());
    check_start_shape(leader, call.start, start->sym_sizes());
  }
}

}  // namespace spikeforge::ops
