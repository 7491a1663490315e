// torch.vmap. Without a batching rule, the operator is called once for each slice, with the sizes of the slice: a
// kernel whose elements depend on each other, or whose grid is for one slice, stays correct.
#include "csrc/custom_op/internal/call_of_user.h"
#include "csrc/custom_op/internal/operator.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/stack.h>

#include <utility>

namespace spikeforge::custom_op {
namespace {

// The innermost vmap of a call. Its kernel receives tensors that are plain or belong to an outer vmap.
class Level {
 public:
  void find(const at::Tensor& t) {
    const auto* const batched = t.defined() ? at::functorch::maybeGetBatchedImpl(t) : nullptr;
    if (batched == nullptr || batched->level() <= id_) return;
    id_ = batched->level();
    size_ = batched->value().size(batched->bdim());
  }

  std::int64_t size() const { return size_; }
  const at::functorch::BatchedTensorImpl* mapped(const at::Tensor& t) const {
    const auto* const batched = t.defined() ? at::functorch::maybeGetBatchedImpl(t) : nullptr;
    return batched != nullptr && batched->level() == id_ ? batched : nullptr;
  }
  at::Tensor wrapped(const at::Tensor& t) const { return at::functorch::makeBatched(t, /*dim=*/0, id_); }

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::FuncTorchBatched};
  std::int64_t id_ = -1;
  std::int64_t size_ = 0;
};

TensorVector by_rule(const Operator& op, const Level& level, const torch::jit::Stack& stack) {
  std::vector<char> mapped(op.argument_count());
  const Values given = op.values(stack);
  std::vector<c10::IValue> values;
  for (std::size_t i = 0; i < given.size(); ++i)
    values.push_back(exchanged(op.kinds[i], given[i], [&](const at::Tensor& t) {
      const auto* const batched = level.mapped(t);
      if (batched == nullptr) return t;
      mapped[i] = true;
      return batched->value().movedim(batched->bdim(), 0);
    }));
  Arguments in = op.arguments(values);
  ArgumentsAccess::mapped(in, mapped);
  TensorVector results =
      call_of_user(op.name, "its batching rule", [&] { return (*op.definition.batching)(in, level.size()); });
  op.check_results("its batching rule", results);
  for (std::size_t i = 0; i < results.size(); ++i)
    TORCH_CHECK_VALUE(results[i].dim() > 0 && results[i].size(0) == level.size(), op.name,
                      ": its batching rule must return result ", i, " a first dimension of ", level.size(),
                      ", the number of maps, but returned shape ", results[i].sizes());
  return results;
}

TensorVector slice_by_slice(const Operator& op, const Level& level, const c10::OperatorHandle& handle,
                            const torch::jit::Stack& stack) {
  TORCH_CHECK_VALUE(level.size() > 0, op.name, ": torch.vmap over a dimension of size 0 needs a batching rule");
  std::vector<TensorVector> slices(op.result_count());
  for (std::int64_t k = 0; k < level.size(); ++k) {
    torch::jit::Stack call;
    const Values given = op.values(stack);
    for (std::size_t i = 0; i < given.size(); ++i)
      call.push_back(exchanged(op.kinds[i], given[i], [&](const at::Tensor& t) {
        const auto* const batched = level.mapped(t);
        return batched == nullptr ? t : batched->value().select(batched->bdim(), k);
      }));
    handle.callBoxed(&call);
    for (std::size_t i = 0; i < slices.size(); ++i) slices[i].push_back(call[i].toTensor());
  }
  TensorVector results;
  for (const TensorVector& slice : slices) results.push_back(at::stack(slice));
  return results;
}

}  // namespace

void call_batched(const DispatchedCall& call) {
  const Operator& op = *call.op;
  Level level;
  op.for_each_tensor(op.values(call.stack), [&](std::size_t, const at::Tensor& t) { level.find(t); });
  TensorVector results =
      op.definition.batching ? by_rule(op, level, call.stack) : slice_by_slice(op, level, call.handle, call.stack);
  for (at::Tensor& t : results) t = level.wrapped(t);
  op.replace(call.stack, std::move(results));
}

}  // namespace spikeforge::custom_op
