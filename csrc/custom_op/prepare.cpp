#include "csrc/custom_op/internal/prepare.h"
#include "ops/common/plain.h"

#include <algorithm>

namespace spikeforge::custom_op {

void check_dtypes(const Operator& op, Values values) {
  if (op.definition.dtypes.empty()) return;
  op.for_each_tensor(values, [&](std::size_t i, const at::Tensor& t) {
    const auto allowed = op.definition.dtypes.find(op.argument_name(i));
    if (!t.defined() || allowed == op.definition.dtypes.end()) return;
    if (std::ranges::find(allowed->second, t.scalar_type()) != allowed->second.end()) return;
    std::string list;
    for (const c10::ScalarType type : allowed->second)
      list += (list.empty() ? "" : " or ") + std::string(toString(type));
    TORCH_CHECK_TYPE(false, op.name, ": ", op.argument_name(i), " must be ", list, ", but is ", t.scalar_type());
  });
}

const at::Tensor& prepare(const Operator& op, torch::jit::Stack& stack) {
  const Values values = op.values(stack);
  check_dtypes(op, values);
  const at::Tensor* leader = nullptr;
  bool are_plain = true;
  std::size_t leading = 0;
  for (std::size_t i = 0; i < values.size() && leader == nullptr; ++i)
    if (op.kinds[i] == ArgumentKind::tensor) {
      leader = &values[i].toTensor();
      leading = i;
    }
  op.for_each_tensor(values, [&](std::size_t i, const at::Tensor& t) {
    if (!t.defined()) {
      TORCH_CHECK_VALUE(op.kinds[i] == ArgumentKind::maybe_tensor || op.kinds[i] == ArgumentKind::maybe_tensor_list,
                        op.name, ": ", op.argument_name(i), " is an undefined tensor");
      return;
    }
    TORCH_CHECK_VALUE(t.device() == leader->device(), op.name, ": ", op.argument_name(i), " must be on ",
                      leader->device(), ", the device of ", op.argument_name(leading), ", but is on ", t.device());
    TORCH_CHECK_TYPE(t.layout() == c10::kStrided, op.name, ": ", op.argument_name(i),
                     " must be a dense tensor, but its layout is ", t.layout());
    are_plain = are_plain && ops::is_plain(t);
  });
  if (!are_plain) {
    const std::size_t first = stack.size() - op.argument_count();
    for (std::size_t i = 0; i < op.argument_count(); ++i)
      if (holds_tensors(op.kinds[i]))
        stack[first + i] = exchanged(op.kinds[i], stack[first + i],
                                     [](const at::Tensor& t) { return t.defined() ? ops::plain(t) : t; });
  }
  return op.values(stack)[leading].toTensor();
}

}  // namespace spikeforge::custom_op
